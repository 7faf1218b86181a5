package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
)

// maxSkew is the largest difference between the clocks that is not worth a finding. Synchronized clocks differ by
// milliseconds.
const maxSkew = 2 * time.Second

// vllmEvents and sglangEvents are the engines' options that turn KV events on.
const (
	vllmEvents   = `--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`
	sglangEvents = `--kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'`
)

func eventsFix(engine fleet.Engine) string {
	switch engine {
	case fleet.EngineVLLM:
		return "start vLLM with " + vllmEvents
	case fleet.EngineSGLang:
		return "start SGLang with " + sglangEvents
	}
	return "turn the engine's KV events on, and give their endpoint: --worker URL,events=tcp://HOST:PORT,replay=tcp://HOST:PORT"
}

// judgeStreams turns what the streams showed into findings. answered says that the worker answered all prompts.
func (e *exam) judgeStreams(s *streams, p *plan, answered bool) {
	if len(s.all) == 0 {
		switch {
		case e.report.CachingOff: // that is the finding
		case e.target.Events == discovery.None:
			e.find("events", Note, "the settings of the worker say events=none", "KV events, with which the router knows the cache exactly",
				"remove events=none, and "+eventsFix(e.report.Facts.Engine))
		case e.report.EventsProblem != "":
			e.find("events", Error, "the engine publishes KV events, but the router cannot use their endpoint: "+e.report.EventsProblem,
				"KV events, with which the router knows the cache exactly", "give the endpoints, with a host: --worker URL,events=tcp://HOST:PORT,replay=tcp://HOST:PORT")
		default:
			e.find("events", Error, "the engine publishes no KV events", "KV events, with which the router knows the cache exactly",
				eventsFix(e.report.Facts.Engine)+"; without events the router only guesses what is cached")
		}
		return
	}
	var ours *announced
	live, connected := 0, 0
	for _, one := range s.all {
		stats := one.subscriber.Stats()
		seen := stats.Connected || stats.Messages > 0
		e.Events = append(e.Events, Stream{one.source.Rank, one.source.Endpoint, one.source.Replay, seen, stats.Messages, stats.Replayed})
		e.judgeStream(one, seen, stats.ReplayError)
		live += one.live
		if seen {
			connected++
		}
		if one.ours != nil {
			ours = one.ours
		}
	}
	switch {
	case !answered || connected == 0 || e.report.CachingOff:
	case live == 0:
		fix := "check that the endpoint and its topic are this engine's: " + eventsFix(e.report.Facts.Engine)
		if e.target.Events != "" || e.target.Topic != "" {
			fix = "correct events= and topic= in the settings of the worker, or leave them out: vLLM from 0.31 and SGLang from 0.5.13 on report them. If they are right, " + fix
		}
		e.find("event_stream", Error, "the stream is connected, but no message came for three prompts", "a message for each prompt", fix)
	case p.ids[0] == nil: // the finding of /tokenize says this
	case ours == nil && s.all[0].window != nil:
		e.find("event_tokens", Error, "messages came, but none has the tokens that the worker's /tokenize gave for the prompt",
			"the tokens of the prompt in an event", "check that the event endpoint belongs to this engine (several engines on one host need a port each), "+
				"and that no proxy changes prompts or /tokenize")
	case ours != nil:
		e.judgeAnnouncement(ours, p)
	}
}

// judgeStream examines one connection. The streams have been stopped.
func (e *exam) judgeStream(one *stream, connected bool, replay error) {
	where := one.source.Endpoint
	if !connected {
		seen := fmt.Sprintf("no connection to %s", where)
		if one.failure != nil {
			seen += fmt.Sprintf(": %v", one.failure)
		}
		fix := "open the port to this machine, and let the engine listen on all addresses (tcp://*:PORT; with another host vLLM connects instead of listening)"
		switch {
		case e.target.Events != "":
			fix = "correct events= in the settings of the worker, or leave it out: vLLM from 0.31 and SGLang from 0.5.13 on report their endpoint. If it is right, " + fix
		case e.report.Guessed:
			fix = "the engine does not report its endpoint, so the default was tried: " + eventsFix(e.report.Facts.Engine) +
				", or give the endpoint: --worker URL,events=tcp://*:PORT"
		}
		e.find("event_stream", Error, seen, "an engine that publishes KV events there", fix)
		return
	}
	if one.bad != nil {
		e.find("event_stream", Error, fmt.Sprintf("a message of %s cannot be read: %v", where, one.bad), "KV events of vLLM, SGLang or TensorRT-LLM",
			"check that the endpoint is the engine's event endpoint, and update Warmpath if the engine is newer")
	}
	switch {
	case one.unnumbered:
		e.find("replay", Warning, fmt.Sprintf("messages of %s have no sequence numbers", where), "numbered messages, whose loss is noticed",
			"update the engine, or remove the program between the engine and the router that drops the numbers")
	case one.source.Replay == "":
		fix := `add "replay_endpoint":"tcp://*:5657" to --kv-events-config`
		if e.report.Facts.Engine != fleet.EngineVLLM && e.report.Facts.Engine != fleet.EngineSGLang || e.report.Guessed {
			fix += ", or give it: --worker URL,events=ENDPOINT,replay=ENDPOINT"
		}
		e.find("replay", Warning, fmt.Sprintf("rank %d has no replay socket", one.source.Rank),
			"a replay socket, from which the router reads what was cached before it connected", fix)
	case replay != nil || !one.whole && !one.lost:
		seen := fmt.Sprintf("no replay came from %s", one.source.Replay)
		if replay != nil {
			seen += fmt.Sprintf(": %v", replay)
		}
		fix := "open the port of replay_endpoint to this machine, as tcp://*:PORT"
		if e.target.Replay != "" {
			fix = "correct replay= in the settings of the worker, or " + fix
		}
		e.find("replay", Warning, seen, "a replay of the engine's last messages", fix)
	case one.lost:
		e.find("replay", Note, fmt.Sprintf("the replay of %s does not begin with the engine's first message", where), "the whole history",
			`give --kv-events-config a larger "buffer_steps" (default 10000), or start the router before the engine has published so many; `+
				"until the engine's cache is replaced, the router knows only a part of it")
	}
}

// judgeAnnouncement examines the event that announced the first prompt.
func (e *exam) judgeAnnouncement(a *announced, p *plan) {
	if a.blockSize > 0 && e.BlockSize > 0 && a.blockSize != e.BlockSize {
		e.find("block_size", Warning, fmt.Sprintf("events have blocks of %d tokens, the engine reports %d", a.blockSize, e.BlockSize), "one block size",
			fmt.Sprintf("set routing.block_sizes: {%s: %d} for the router", e.report.Facts.BaseModel(), a.blockSize))
	}
	if set := e.options.BlockSizes[e.report.Facts.BaseModel()]; set > 0 && a.blockSize > 0 && set != a.blockSize {
		e.find("block_size", Error, fmt.Sprintf("routing.block_sizes says %d for %s, events have blocks of %d tokens", set, e.report.Facts.BaseModel(), a.blockSize),
			"the engine's block size", "remove the model from routing.block_sizes: the router learns the size itself")
	}
	if set := e.options.BlockSize; set > 0 && a.blockSize > 0 && set%a.blockSize != 0 && a.blockSize%set != 0 {
		e.find("block_size", Warning, fmt.Sprintf("routing.block_size is %d, the engine's blocks have %d tokens", set, a.blockSize),
			"a multiple or a divisor of the engine's block size", fmt.Sprintf("remove routing.block_size, or set it to %d", a.blockSize))
	}
	// By the same clock the message was made after the prompt was sent, and before the message came.
	switch early, late := p.sent.Sub(a.made), a.made.Sub(a.came); {
	case a.made.Unix() == 0:
	case early > maxSkew:
		e.find("clock", Warning, fmt.Sprintf("the engine's clock is at least %v behind this machine's", early.Round(time.Second)), "clocks that agree",
			"synchronize both machines (chrony or systemd-timesyncd): times in logs, metrics and traces do not fit together")
	case late > maxSkew:
		e.find("clock", Warning, fmt.Sprintf("the engine's clock is at least %v ahead of this machine's", late.Round(time.Second)), "clocks that agree",
			"synchronize both machines (chrony or systemd-timesyncd): times in logs, metrics and traces do not fit together")
	}
	e.judgeChain(&a.sample)
}

// judgeChain looks for the algorithm and the seed that give the hashes of the announced blocks.
func (e *exam) judgeChain(sample *block.EngineSample) {
	n := len(sample.Hashes)
	if n == 0 || sample.Size <= 0 || len(sample.Tokens) < n*sample.Size {
		return
	}
	seeds := slices.Concat([]string{"0", "42"}, e.options.Seeds)
	chain, ok := block.IdentifyEngine(*sample, seeds...)
	if ok {
		e.HashChain = chain.Algorithm.String()
		if chain.Seed != "" {
			e.HashChain += " with seed " + chain.Seed
		}
		return
	}
	fix := "nothing for Warmpath, which hashes the tokens of events itself. If LMCache, an offload tier or another router compares the workers' hashes: " +
		"start all engines with the same PYTHONHASHSEED (such as 0) and --prefix-caching-hash-algo sha256_cbor; if you have done so, name the seed: --seed TEXT"
	if e.report.Facts.Engine == fleet.EngineSGLang {
		fix = "nothing for Warmpath, which hashes the tokens of events itself; programs that compute SGLang's hashes cannot find these blocks"
	}
	e.find("hash_chain", Note, "no known algorithm and seed give the hashes of the events", "hashes that can be computed", fix)
}
