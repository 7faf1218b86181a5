package sim

import "time"

// Frontend has the times that an engine's API server takes: for HTTP, chat template, tokenizer, and for streaming each
// token. The API server is one process, separate from the processes of the ranks. The API server does one task after
// another, in the order of arrival [vLLM, v1/engine/async_llm.py and output_processor.py; SGLang,
// tokenizer_manager.py]. The zero value takes no time.
type Frontend struct {
	Request time.Duration // time for each request
	Token   time.Duration // time for each token of the request's prompt
	Pass    time.Duration // time for each pass that generates tokens
	Output  time.Duration // time for each generated token
	End     time.Duration // time for each request after the end of its answer
	// Shared means that the API server and the passes of its ranks share CPU cores, one core for each rank. While all
	// ranks make passes, the API server gets as much CPU time as two ranks: the API server has several threads and sleeps
	// more often, so the operating system prefers it to a rank. With one rank the API server then gets two thirds of the
	// core. With two ranks it gets one core, and each rank gets half of the other core. The share of two thirds was fitted
	// to real engines. With half of the core, simulated first tokens of short prompts came 50 % too late. With four
	// fifths, simulated first tokens of long prompts came 20 % too early.
	Shared bool
}

func (f *Frontend) idle() bool { return *f == Frontend{Shared: f.Shared} }

// valid reports whether each time is within 0 and one minute.
func (f *Frontend) valid() bool {
	return min(f.Request, f.Token, f.Pass, f.Output, f.End) >= 0 && max(f.Request, f.Token, f.Pass, f.Output, f.End) <= time.Minute
}

// apiServer is the state of a worker's API server, which its ranks share.
type apiServer struct {
	free  time.Duration // time at which all accepted work of the API server is done
	ranks []*rank
}

// busy reports whether all ranks of the API server make passes, so that no core is free.
func (s *apiServer) busy() bool {
	for _, r := range s.ranks {
		if r.doing != stepping {
			return false
		}
	}
	return true
}

// serve adds work of duration d to r's API server, and returns the time at which this work is done.
func (w *world) serve(r *rank, d time.Duration) time.Duration {
	if d <= 0 {
		return w.now
	}
	took := d
	if r.group.Frontend.Shared && r.apiServer.busy() {
		n := time.Duration(len(r.apiServer.ranks))
		took = max(d, d*(n+2)/(2*n))
		for _, other := range r.apiServer.ranks {
			other.stolen += d / n
		}
	}
	r.apiServer.free = max(r.apiServer.free, w.now) + took
	return r.apiServer.free
}

// receive takes a request that has arrived at its worker. The API server works on the request first, then the engine
// gets it.
func (w *world) receive(f *flight) {
	front := &f.rank.group.Frontend
	if front.idle() || f.rank.dead {
		w.submit(f)
		return
	}
	done := w.serve(f.rank, front.Request+time.Duration(f.req.Input)*front.Token)
	w.agenda.plan(moment{at: done, kind: atSubmit, with: f})
}

// delayed reports whether r's current pass ends later than now because the API server used r's core. In this case
// delayed plans the later end.
func (w *world) delayed(r *rank) bool {
	if r.doing != stepping || r.stolen == 0 {
		return false
	}
	d := r.stolen
	r.stolen = 0
	w.wakeAt(r, w.now+d)
	return true
}
