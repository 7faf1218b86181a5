package fleet

// WorkerID is the id of one stay of a worker in the fleet, from [Fleet.Put] to [Fleet.Remove]. A [Fleet] assigns ids in
// ascending order, and never assigns an id a second time: there are 2^32.
type WorkerID uint32

// NoWorker is the id of no worker.
const NoWorker = WorkerID(^uint32(0))

// Engine is the kind of engine behind a worker.
type Engine uint8

// The engines that a probe distinguishes.
const (
	EngineUnknown Engine = iota // not probed yet
	EngineVLLM
	EngineSGLang
	EngineTRTLLM
	EngineOther // speaks the OpenAI API, and is none of the engines above
)

var engineNames = [...]string{"unknown", "vllm", "sglang", "trtllm", "other"}

// String returns the engine's name as configuration, metrics and the admin API write it.
func (e Engine) String() string {
	if int(e) < len(engineNames) {
		return engineNames[e]
	}
	return "unknown"
}

// Model is one entry of a worker's /v1/models.
type Model struct {
	ID          string // the name requests use
	Root        string // the model's source: two ids with the same root on one worker are one model; "" is unknown
	Parent      string // the base model's ID when this is a LoRA adapter, else ""
	MaxModelLen int    // tokens of prompt and answer together; 0 is unknown
}

// EventSource is where one data-parallel rank publishes its KV events.
type EventSource struct {
	Rank     int    // global data-parallel rank
	Endpoint string // ZMQ endpoint of the publisher, such as tcp://10.0.0.7:5557
	Replay   string // ZMQ endpoint of the replay socket; "" is none
	Topic    string // prefix to subscribe to; "" is all
}

// Facts are what a probe learned about a worker. The zero value of a field means unknown. Slices belong to the fleet
// after [Fleet.Put].
type Facts struct {
	Engine        Engine        // the software that runs the model
	Version       string        // the engine's version
	Models        []Model       // in the engine's order: the first one without a parent is the base model
	BlockSize     int           // tokens in an engine block (SGLang: page)
	BlocksPerRank int           // capacity of one rank's cache in engine blocks
	Ranks         int           // data-parallel ranks behind this URL; 0 counts as 1
	FirstRank     int           // the first rank's global number, as in the header X-Data-Parallel-Rank
	Events        []EventSource // none: the worker publishes no events
	DeclaredRanks int           // how many of Ranks are used, as the operator declared; 0 is DefaultRanks

	// Origins are the places that the engine loaded the tokenizer of its base model from, the likeliest first: folders
	// on its machine, or names on a hub. Nil is unknown; vLLM reports only the model's Root.
	Origins []string

	Labels map[string]string // set by the operator, such as node and zone; not changed once given to the fleet

	CanRender           bool // POST /v1/chat/completions/render answers
	CanTokenize         bool // POST /tokenize answers
	ReportsCachedTokens bool // the usage of an answer has prompt_tokens_details.cached_tokens

	AdapterSlots int // how many LoRA adapters the engine keeps loaded at the same time, as it reports

	Role     Role     // which legs of a request the worker serves
	Transfer Transfer // how it exchanges KV blocks with other workers
}

// UsedRanks returns how many ranks, from FirstRank on, get requests. The events of other ranks are not read.
func (f *Facts) UsedRanks() int {
	most := DefaultRanks
	if f.DeclaredRanks > 0 {
		most = min(f.DeclaredRanks, MaxRanks)
	}
	return min(max(f.Ranks, 1), most)
}

// BaseModel returns the name under which the worker's base model is indexed: the worker's first model that is no
// adapter. It returns "" if no model is known yet. KV events name no model; they are about the base model.
func (f *Facts) BaseModel() string {
	for i := range f.Models {
		if f.Models[i].Parent == "" {
			return f.Models[i].ID
		}
	}
	return ""
}

// MaxModelLen returns the greatest model length that the worker reports, or 0 if it reports none.
func (f *Facts) MaxModelLen() (n int) {
	for i := range f.Models {
		n = max(n, f.Models[i].MaxModelLen)
	}
	return n
}

// resolve returns the base model and the adapter of m. Models with the same root are one model under several names
// (vLLM --served-model-name a b) and share one cache. All of them resolve to the first name.
func (f *Facts) resolve(m *Model) (base, lora string) {
	if m.Parent != "" {
		lora = m.ID
		for i := range f.Models {
			if f.Models[i].ID == m.Parent && f.Models[i].Parent == "" {
				base, _ = f.resolve(&f.Models[i])
				return base, lora
			}
		}
		return m.Parent, lora // the base is not listed under this name
	}
	if m.Root != "" {
		for i := range f.Models {
			if f.Models[i].Parent == "" && f.Models[i].Root == m.Root {
				return f.Models[i].ID, ""
			}
		}
	}
	return m.ID, ""
}

// Worker is one engine server as a snapshot saw it. It is immutable.
type Worker struct {
	ID       WorkerID // the same until the worker is removed
	URL      string   // without a trailing slash
	Facts    Facts    // what probes and events said of the worker
	Healthy  bool     // the last active check succeeded
	Draining bool     // gets no new requests; requests in flight continue
	Asleep   bool     // the engine sleeps: see [Fleet.SetAsleep]
	Ready    bool     // healthy, neither draining nor asleep, and known to serve a model
	Why      string   // why the worker is not ready, in words; "" when it is ready
	// Incarnation grows by one each time another process is found behind the URL (see [Fleet.Answered]), and each time
	// a worker is put at the URL of a worker that left.
	Incarnation uint64
	Holders     []Holder // one for each used rank, from rank Facts.FirstRank on
	// ModelOrders grows when an order to load or unload an adapter begins, and when it ends: see [Fleet.BeginModelOrder].
	// It is odd while an order is under way.
	ModelOrders uint32
	longest     int // Facts.maxModelLen, which each decision needs
}

// Rank returns the holder of the global data-parallel rank.
func (w *Worker) Rank(rank int) (Holder, bool) {
	if i := rank - w.Facts.FirstRank; i >= 0 && i < len(w.Holders) {
		return w.Holders[i], true
	}
	return NoHolder, false
}
