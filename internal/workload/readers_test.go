package workload

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

func readText(t *testing.T, kind, text string) *Workload {
	t.Helper()
	w, err := read(strings.NewReader(text), kind, "", Options{})
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return w
}

func TestBlocksOfAHashTraceBecomeSegments(t *testing.T) {
	w := readText(t, "mooncake", `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 2353]}
{"timestamp": 30535, "input_length": 600, "output_length": 26, "hash_ids": [46, 47], "session_id": "s"}
`)
	r := w.Requests[0]
	if r.Arrival != 0 || len(r.Segments) != 14 || r.Segments[13] != (Segment{2353, 6955 - 13*512}) || r.Session != -1 {
		t.Errorf("%+v", r)
	}
	r = w.Requests[1]
	if r.Arrival != 3053*time.Millisecond || r.Session != 0 || !cmp.Equal(r.Segments, []Segment{{46, 512}, {47, 88}}) {
		t.Errorf("%+v", r)
	}
	w = readText(t, "qwen", `{"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 20, "output_length": 34, "type": "text", "turn": 1, "hash_ids": [5, 6]}
{"chat_id": 9, "parent_chat_id": 7, "timestamp": 62.5, "input_length": 40, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [5, 6, 8]}
{"chat_id": 10, "parent_chat_id": 3, "timestamp": 62.5, "input_length": 16, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [5]}
`)
	got := [][2]int{}
	for _, r := range w.Requests {
		got = append(got, [2]int{r.Session, r.Turn})
	}
	if !cmp.Equal(got, [][2]int{{0, 0}, {0, 1}, {1, 0}}) || w.Requests[1].Arrival != 1386*time.Millisecond {
		t.Errorf("sessions and turns %v, second at %s", got, w.Requests[1].Arrival)
	}
}

func TestDelaysOfMooncakeSessionsAreClosedLoops(t *testing.T) {
	w := readText(t, "mooncake", `{"session_id": "a", "timestamp": 100, "input_length": 512, "output_length": 5, "hash_ids": [1]}
{"session_id": "b", "timestamp": 150, "input_length": 512, "output_length": 5, "hash_ids": [1]}
{"session_id": "a", "delay": 2000, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}
{"session_id": "a", "delay": 10, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}
`)
	if r := w.Requests[2]; r.After != 0 || r.Think != 2*time.Second || r.Turn != 1 || r.Arrival != 2*time.Second {
		t.Errorf("%+v", r)
	}
	if r := w.Requests[3]; r.After != 2 || r.Think != 10*time.Millisecond || r.Turn != 2 {
		t.Errorf("%+v", r)
	}
}

func TestTablesOfLengths(t *testing.T) {
	f := func(kind, text string, want ...Request) {
		t.Helper()
		w := readText(t, kind, text)
		if diff := cmp.Diff(want, w.Requests); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n",
		Request{ID: 0, Session: -1, After: -1, Input: 4808, Output: 10},
		Request{ID: 1, Arrival: 52 * time.Millisecond, Session: -1, After: -1, Input: 3180, Output: 8})
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.009930+00:00,20,5\n",
		Request{ID: 0, Session: -1, After: -1, Input: 2162, Output: 5},
		Request{ID: 1, Arrival: time.Second, Session: -1, After: -1, Input: 20, Output: 5})
	f("burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,Conversation log\n",
		Request{ID: 0, Session: -1, After: -1, Input: 472, Output: 18},
		Request{ID: 1, Arrival: 113 * time.Second, Session: -1, After: -1, Input: 417, Output: 276})
	f("burstgpt", "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.5,a,1,ChatGPT,4,1,5,Conversation log\n6,b,1,ChatGPT,4,1,5,Conversation log\n7,a,1,ChatGPT,9,1,10,Conversation log\n",
		Request{ID: 0, After: -1, Input: 4, Output: 1},
		Request{ID: 1, Arrival: 500 * time.Millisecond, Session: 1, After: -1, Input: 4, Output: 1},
		Request{ID: 2, Arrival: 1500 * time.Millisecond, Session: 0, Turn: 1, After: -1, Input: 9, Output: 1})
}

func TestComponentsOfRAGPulseTakeTheirLengthsFromTheFilesBeside(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("0_trace.jsonl", `{"timestamp": "27", "input_length": 100, "output_length": 7, "hash_ids": {"sys_prompt": [1], "passages_ids": [2, 3], "history": [], "web_search": [], "user_input": [4]}, "session_id": "x"}
{"timestamp": "3", "input_length": 60, "output_length": 7, "hash_ids": {"sys_prompt": [1], "passages_ids": [3], "history": [], "web_search": [], "user_input": []}, "session_id": "y"}
`)
	spec := "ragpulse:" + filepath.Join(dir, "0_trace.jsonl")
	w, err := Load(spec, Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Without the files with lengths, a text gets an equal share of the first prompt in the file that contains it, even if
	// another prompt with this text arrives earlier.
	if got := w.Requests[1].Segments; !cmp.Equal(got, []Segment{{1, 25}, {2, 25}, {3, 25}, {4, 25}}) {
		t.Errorf("without lengths: %v", got)
	}
	write("1_sys_prompt.jsonl", `{"hash_id": 1, "length": 40}`)
	write("2_passages.jsonl", `{"hash_id": 2, "length": 30}
{"3": 3, "n": 20}
`)
	write("4_user_input.jsonl", `{"hash_id": 4, "length": 50}`)
	if w, err = Load(spec, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := w.Requests[1].Segments; !cmp.Equal(got, []Segment{{1, 40}, {2, 30}, {3, 20}, {4, 10}}) {
		t.Errorf("cut to the prompt's length: %v", got)
	}
	if got := w.Requests[0].Segments; !cmp.Equal(got[:2], []Segment{{1, 40}, {3, 20}}) || w.Requests[0].Arrival != 0 {
		t.Errorf("the first to arrive: %+v", w.Requests[0])
	}
	write("2_passages.jsonl", "\n{\"hash_id\": 2}")
	if _, err = Load(spec, Options{}); err == nil || !strings.Contains(err.Error(), "2_passages.jsonl: line 2") {
		t.Errorf("a broken file of lengths: %v", err)
	}
}

func TestAgentsWaitForAnswersAndForTheirSubAgents(t *testing.T) {
	event := func(session, parent string, start, took int) string {
		return fmt.Sprintf(`{"event":{"event_type":"request_end","agent_context":{"session_id":%q,"parent_session_id":%q},"request":{"input_tokens":20,"output_tokens":2,"request_received_ms":%d,"total_time_ms":%d,"replay":{"trace_block_size":16,"input_sequence_hashes":[1,2]}}}}`, session, parent, start, took)
	}
	w := readText(t, "agent", strings.Join([]string{
		event("root", "", 1000, 500),
		`{"event":{"event_type":"tool_start","agent_context":{"session_id":"root"}}}`,
		event("scout:1", "root", 1800, 100), // the trace has rows in the order of the calls' ends
		event("scout:0", "root", 1700, 300),
		event("scout:1", "root", 2000, 100),
		event("root", "", 2600, 100),
	}, "\n"))
	type link struct {
		After int
		Join  []int
		Think time.Duration
	}
	var got []link
	for _, r := range w.Requests {
		got = append(got, link{r.After, r.Join, r.Think})
		if r.Session != 0 {
			t.Errorf("request %d is of session %d", r.ID, r.Session)
		}
	}
	ms := time.Millisecond
	want := []link{{-1, nil, 0}, {0, nil, 200 * ms}, {0, nil, 300 * ms}, {2, nil, 100 * ms}, {3, []int{0, 1}, 500 * ms}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w = readText(t, "agent", `{"timestamp": 5000000, "input": "hello world, what is up", "output": "abcd", "session_id": "s"}
{"timestamp": 2000000, "input": "hello", "output": "", "session_id": "s"}
{"timestamp": 2500000, "input": "hello", "output": "x", "session_id": "other"}`)
	if r := w.Requests[2]; r.After != 0 || r.Turn != 1 || r.Text.Prompt != "hello world, what is up" || r.Input != 6 ||
		r.Think < 2700*ms || r.Think > 2800*ms {
		t.Errorf("%+v", r)
	}
}

func TestRequestBodiesKeepTheirText(t *testing.T) {
	w := readText(t, "openai", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("same words again ", 20)+`one"}],"max_tokens":7}
{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("same words again ", 20)+`two"}]}}
{"prompt":[1,2,3],"max_tokens":2}
{"prompt":"text","usage":{"completion_tokens":9}}
`)
	outputs := []int{}
	for _, r := range w.Requests {
		outputs = append(outputs, r.Output)
	}
	if !cmp.Equal(outputs, []int{7, openaiOutput, 2, 9}) {
		t.Errorf("outputs %v", outputs)
	}
	a, b := w.Requests[0], w.Requests[1]
	if n := commonSegments(a.Segments, b.Segments); n < 4 || n == len(a.Segments) || a.Text.Messages == nil || a.Model != "m" {
		t.Errorf("%d segments of %d are common", n, len(a.Segments))
	}
	if got := w.Requests[2].AppendTokens(nil); !cmp.Equal(got, []block.Token{1, 2, 3}) {
		t.Errorf("token ids %v", got)
	}
}

func commonSegments(a, b []Segment) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestOwnFormat(t *testing.T) {
	w := readText(t, "warmpath", `{"warmpath":1,"name":"mine","block":16,"stages":[{"name":"a","start":0,"first":0},{"name":"b","start":5,"rate":2,"first":2,"drain":true}]}
{"id":"x","at":1,"segments":[[5,32],[6,8]],"output":4,"answer":77,"session":"s"}
{"after":"x","think":0.5,"segments":[[5,32],[6,8],[77,4],[9,3]],"output":1,"session":"s"}
{"at":6,"input":10,"output":2,"model":"m","lora":"l"}
{"prompt":"hello","input":3,"output":2}
`)
	if r := w.Requests[1]; r.After != 0 || r.Turn != 1 || r.Input != 47 || r.Think != 500*time.Millisecond || w.Requests[0].Arrival != time.Second {
		t.Errorf("%+v", r)
	}
	if r := w.Requests[3]; r.Input != 3 || r.Arrival != 6*time.Second || !cmp.Equal(r.Segments, []Segment{{r.Segments[0].ID, 2}, {r.Segments[1].ID, 1}}) {
		t.Errorf("%+v", r)
	}
	if !w.Stages[1].Drain || w.Stages[1].Start != 5*time.Second {
		t.Errorf("%+v", w.Stages)
	}
}

// For every generator and for traces in three formats, Write and Read give back an equal workload, except for Name and
// Source.
func TestOwnFormatKeepsEverything(t *testing.T) {
	var all []*Workload
	for _, g := range Generators() {
		w, err := Load("gen:"+g[0], Options{Limit: 300, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for _, spec := range []string{"mooncake:mooncake_toolagent_head1000.jsonl.gz", "agent:dynamo_pi_agent_request_trace.jsonl.gz",
		"agent:lmcache_agent_taubench.jsonl.gz", "tokens:llmservingsim_sharegpt_llama31_8b_head20.jsonl.gz"} {
		kind, name, _ := strings.Cut(spec, ":")
		w, err := Load(kind+":"+testenv.Path(t, "traces/"+name), Options{Limit: 300})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	for _, w := range all {
		var out bytes.Buffer
		if err := Write(&out, w); err != nil {
			t.Fatal(err)
		}
		again, err := read(&out, "warmpath", "", Options{Raw: true})
		if err != nil {
			t.Fatalf("%s: %v", w.Name, err)
		}
		again.Name, again.Source = w.Name, w.Source
		if !reflect.DeepEqual(w, again) {
			t.Errorf("%s (-written +read):\n%.2000s", w.Name, cmp.Diff(w, again))
		}
	}
}

func TestBadLinesAreNamed(t *testing.T) {
	f := func(kind, text, want string) {
		t.Helper()
		_, err := read(strings.NewReader(text), kind, "", Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %q: error %v, want %q", kind, text, err, want)
		}
	}
	good := `{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}` + "\n"
	f("mooncake", "", "no requests")
	f("mooncake", good+"\n{", "line 3: ")
	f("mooncake", good+`{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1, 2]}`, "line 2: 2 hash ids for 5 tokens")
	f("mooncake", good+`{"input_length": 5}`, "line 2: timestamp is missing")
	f("mooncake", good+`{"session_id": 1, "delay": 5, "input_length": 5}`, "line 2: timestamp is missing")
	f("mooncake", good+`{"timestamp": 1e300, "input_length": 5}`, "line 2: timestamp")
	f("mooncake", good+`{"timestamp": 1, "input_length": 5000000000, "output_length": 1}`, "line 2: 5000000000 prompt")
	f("azure", "a,b\n1,2", `line 1: the header has no column "TIMESTAMP"`)
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1", "line 2: 2 fields")
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1", `line 2: column TIMESTAMP: "now"`)
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,1", "line 2: ContextTokens")
	f("burstgpt", "Timestamp,Request tokens,Response tokens\nNaN,1,1", "line 2: column Timestamp")
	f("ragpulse", `{"timestamp": "soon"}`, "line 1: timestamp")
	f("agent", `{"foo": 1}`, "line 1: neither input")
	f("openai", `{"messages": {}}`, "line 1: messages")
	f("openai", `{"prompt": [[1],[2]]}`, "line 1: prompt")
	f("openai", "{\"prompt\":\"x\"}\n{\"prompt\":\"x\",\"timestamp\":1}", "1 requests have a timestamp and 1 have none")
	f("tokens", `{"input_tok_ids": [-1]}`, "line 1: ")
	f("warmpath", `{"input":1,"output":1,"outptu":3}`, `line 1: json: unknown field "outptu"`)
	f("warmpath", `{"input":1,"output":1} {}`, "line 1: more follows")
	f("warmpath", `{"input":1,"output":1,"after":"0"}`, `line 1: after: there is no request "0"`)
	f("warmpath", "{\"id\":\"a\",\"input\":1,\"output\":1}\n{\"id\":\"a\",\"input\":1,\"output\":1}", "line 2: id \"a\" is taken")
	f("warmpath", `{"input":9,"segments":[[1,2]],"output":1}`, "line 1: input: 9 tokens, but")
	f("warmpath", `{"warmpath":2}`, "line 1: version 2")
	f("warmpath", `{"input":1,"output":1,"join":["0"]}`, "line 1: ")
	f("warmpath", "{\"input\":1,\"output\":1}\n{\"input\":1,\"output\":1,\"after\":\"0\",\"join\":[\"\"]}", "line 2: join")
	f("warmpath", "{\"id\":\"a\",\"prompt\":\"x\",\"input\":-1,\"output\":1}\n{\"input\":1,\"output\":1,\"after\":\"a\"}", "line 1: input: -1")
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1", `line 1: the header has the column "GeneratedTokens" twice`)
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens,,\n2023-11-16 18:17:03,1,1", "line 2: 3 fields, the header has 5")
	f("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2000-01-01 00:00:00,1,1\n9999-01-01 00:00:00,1,1", "line 3: its time lies 292 years")
	f("burstgpt", "Timestamp,Request tokens,Response tokens\n-3e9,1,1\n3e9,1,1", "190 years apart")
	f("qwen", "\x1f\x8bnot gzip", "gzip")
	for spec, want := range map[string]string{
		"x": "want FORMAT:FILE", "csv:f": "no format \"csv\"", "mooncake:/does/not/exist": "open workload", "gen:nothing": "no generator",
		"gen:rag,zip=3": "zipf", "gen:rag,passages=-1": "want a number", "gen:llmd-ladder,stages=3": "RATExSECONDS", "gen:rag,documents=0": "passages",
		"gen:independent,requests=0": "no requests", "gen:independent,question=0": "a prompt of 0 tokens", "gen:conversations,sessions=1000000,turns=10000,rate=inf": "more than 16 MiB",
		"gen:independent,requests=16000000": "more than 16 MiB", "gen:rag,seed=x": "seed",
	} {
		if _, err := Load(spec, Options{Bytes: 16 << 20}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", spec, err, want)
		}
	}
}

func TestGzipAndLimits(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	for i := range 100 {
		fmt.Fprintf(z, `{"timestamp": %d, "input_length": 512, "output_length": 1, "hash_ids": [%d]}`+"\n", i*1000, i)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := read(bytes.NewReader(packed.Bytes()), "mooncake", "", Options{Limit: 30})
	if err != nil || len(w.Requests) != 30 {
		t.Fatalf("%v, %+v", err, w)
	}
	if _, err := read(bytes.NewReader(packed.Bytes()), "mooncake", "", Options{Bytes: 5000}); err == nil || !strings.Contains(err.Error(), "read fewer") {
		t.Errorf("beyond the bytes: %v", err)
	}
	if _, err := read(bytes.NewReader(packed.Bytes()[:packed.Len()/2]), "mooncake", "", Options{}); err == nil {
		t.Error("a torn file was read")
	}
	if _, err := read(strings.NewReader(`{"x":"`+strings.Repeat("y", maxLine)+`"}`), "mooncake", "", Options{}); err == nil || !strings.Contains(err.Error(), "line 1: longer") {
		t.Errorf("an endless line: %v", err)
	}
}

// Mooncake's conversation trace has one timestamp for each 3 s. Reading must spread the requests with the same
// timestamp over 3 s.
func TestBinnedTimestampsAreSpread(t *testing.T) {
	spec := "mooncake:" + testenv.Path(t, "traces/mooncake_conversation.jsonl.gz")
	w, err := Load(spec, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Load(spec, Options{Seed: 1})
	other, _ := Load(spec, Options{Seed: 2})
	distinct := map[time.Duration]bool{}
	same, moved := 0, 0
	for i := range w.Requests {
		distinct[w.Requests[i].Arrival] = true
		if w.Requests[i].Arrival == again.Requests[i].Arrival {
			same++
		}
		if w.Requests[i].Arrival != other.Requests[i].Arrival {
			moved++
		}
	}
	if len(distinct) < 12000 || same != 12031 || moved < 12000 {
		t.Errorf("%d distinct arrivals; %d the same with the same seed, %d others with another", len(distinct), same, moved)
	}
	if !slices.ContainsFunc(w.Notes, func(n string) bool { return strings.Contains(n, "bins of 3s") }) {
		t.Errorf("the jitter is not told: %q", w.Notes)
	}
	// A trace with a fine clock gets no jitter.
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, `{"timestamp": %d, "input_length": 5, "output_length": 1, "hash_ids": [1]}`+"\n", i*i)
	}
	if w := readText(t, "mooncake", text.String()); w.Requests[99].Arrival != 99*99*time.Millisecond {
		t.Error("a trace without bins was spread")
	}
}

func FuzzRead(f *testing.F) {
	kinds := Formats()
	for i := range kinds {
		for _, text := range []string{
			`{"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2], "chat_id": 1, "parent_chat_id": 0}`,
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n",
			"Timestamp,Session ID,Request tokens,Response tokens\n5.5,a,4,1\n7,a,9,1\n",
			"Timestamp,Request tokens,Response tokens,,\n-3e9,4,1,,\n3e9,9,1,,\n",
			`{"timestamp": "3", "input_length": 6, "output_length": 7, "hash_ids": {"sys_prompt": [1], "passages_ids": [3]}, "session_id": "y"}`,
			`{"event":{"event_type":"request_end","agent_context":{"session_id":"a","parent_session_id":"b"},"request":{"input_tokens":20,"output_tokens":2,"request_received_ms":1,"total_time_ms":2,"replay":{"trace_block_size":16,"input_sequence_hashes":[1,2]}}}}`,
			`{"timestamp": 5000000, "input": "hello", "output": "abcd", "session_id": "s"}`,
			`{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":7}`,
			`{"input_toks": 2, "output_toks": 5, "arrival_time_ns": 46926808, "input_tok_ids": [5971, 2927]}`,
			"{\"id\":\"x\",\"prompt\":\"a\",\"input\":-1,\"output\":1}\n{\"input\":4,\"output\":1,\"after\":\"x\",\"join\":[\"\"]}",
			"{\"warmpath\":1,\"stages\":[{\"name\":\"a\",\"start\":0,\"first\":0}]}\n{\"id\":\"x\",\"at\":1,\"segments\":[[5,32]],\"output\":4,\"answer\":77}\n{\"after\":\"x\",\"join\":[\"x\"],\"input\":4,\"output\":1}",
		} {
			f.Add(uint8(i), []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		w, err := read(bytes.NewReader(data), kinds[int(kind)%len(kinds)][0], "", Options{Bytes: 1 << 20})
		if err != nil {
			return
		}
		check(t, w)
		var out bytes.Buffer
		if err := Write(&out, w); err != nil {
			t.Fatal(err)
		}
		if again, err := read(&out, "warmpath", "", Options{Raw: true}); err != nil || len(again.Requests) != len(w.Requests) {
			t.Fatalf("what was read cannot be written and read: %v", err)
		}
	})
}

// check fails if a workload breaks a rule of the type Workload.
func check(t *testing.T, w *Workload) {
	t.Helper()
	last := time.Duration(0)
	for i := range w.Requests {
		r := &w.Requests[i]
		sum := 0
		for _, s := range r.Segments {
			sum += s.Tokens
		}
		switch {
		case r.ID != i, r.Arrival < last, r.Input < 1, r.Output < 1, r.Think < 0:
			t.Fatalf("request %d: %+v after one at %s", i, r, last)
		case r.After >= i || slices.ContainsFunc(r.Join, func(j int) bool { return j >= i || j < 0 }):
			t.Fatalf("request %d waits for %d and %v", i, r.After, r.Join)
		case r.Segments != nil && sum != r.Input:
			t.Fatalf("request %d: segments of %d tokens, prompt of %d", i, sum, r.Input)
		}
		last = r.Arrival
	}
	for i, s := range w.Stages {
		if s.First >= len(w.Requests) || i > 0 && s.First < w.Stages[i-1].First {
			t.Fatalf("stages %+v", w.Stages)
		}
	}
}
