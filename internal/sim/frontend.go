package sim

import "time"

// Frontend is the time that an engine's API server takes for its requests: HTTP, chat template, tokenizer, and the part
// of the stream for each token. The API server is one process, separate from the ranks' engines. It does one task after
// another, in the order of arrival [vLLM, v1/engine/async_llm.py and output_processor.py; SGLang,
// tokenizer_manager.py]. The zero value takes no time.
type Frontend struct {
	Request time.Duration // time for each request
	Token   time.Duration // time for each token of the request's prompt
	Pass    time.Duration // time for each pass that makes tokens of answers
	Output  time.Duration // time for each token that such a pass makes
	End     time.Duration // time for each request after the end of its answer
	// Shared means that the API server and its ranks' passes share cores: as many cores as there are ranks. While all
	// ranks make passes, the API server counts as two ranks: it has several threads and sleeps more often, which the
	// operating system favours. With one rank it gets two thirds of the core. These figures fit real engines: with half
	// of the core, first tokens of short prompts came 50 % too late; with four fifths, first tokens of long prompts
	// came 20 % too early. With two ranks the API server gets one core, and each rank half of the other core.
	Shared bool
}

func (f *Frontend) idle() bool { return *f == Frontend{Shared: f.Shared} }

// valid reports whether no time is negative or too long.
func (f *Frontend) valid() bool {
	return min(f.Request, f.Token, f.Pass, f.Output, f.End) >= 0 && max(f.Request, f.Token, f.Pass, f.Output, f.End) <= time.Minute
}

// apiServer is the state of a worker's API server, which its ranks share.
type apiServer struct {
	free  time.Duration // time at which all its present work is done
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

// serve gives r's API server work of length d now, and returns the time at which this work is done.
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

// receive gives a request that has arrived at its worker to the API server, and then to the engine.
func (w *world) receive(f *flight) {
	front := &f.rank.group.Frontend
	if front.idle() || f.rank.dead {
		w.submit(f)
		return
	}
	done := w.serve(f.rank, front.Request+time.Duration(f.req.Input)*front.Token)
	w.agenda.plan(moment{at: done, kind: atSubmit, with: f})
}

// delayed reports whether r's pass, which should end now, ends later because the API server used r's core. If so,
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
