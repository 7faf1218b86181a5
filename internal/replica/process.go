package replica

import "github.com/warmpath/warmpath/fleet"

// process is the process behind a worker's URL, as this router knows it. What is said of a worker's cache holds for
// one process. Each router counts the restarts that it has seen, so a process means nothing to another router, and is
// never sent. The zero value is no process.
type process struct {
	worker      fleet.WorkerID
	incarnation uint64
	known       bool
}

// processOf returns the present process of w, which may be nil.
func processOf(w *fleet.Worker) process {
	if w == nil {
		return process{}
	}
	return process{w.ID, w.Incarnation, true}
}

// processAt returns the present process at url; the zero value if there is no such worker.
func processAt(f *fleet.Fleet, url string) process {
	id, ok := f.Find(url)
	if !ok {
		return process{}
	}
	return processOf(f.Snapshot().ByID(id))
}

// runs reports whether p is the present process of its worker.
func (p process) runs(snap *fleet.Snapshot) bool {
	return p.known && processOf(snap.ByID(p.worker)) == p
}
