package fleet

import "slices"

// BeginModelOrder records that a worker is about to be told to load or unload an adapter. If drop is not empty, the
// worker gets no further request for the model of that name. Each call needs a call of [Fleet.EndModelOrder]. A worker
// carries out one order at a time.
//
// A list of models that the worker gave before the order ended may lack its result. So whoever asks a worker for its
// models compares Worker.ModelOrders before the question and after the answer: if the number changed or is odd, the
// fleet knows better.
func (f *Fleet) BeginModelOrder(id WorkerID, drop string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.worker(id)
	if old == nil {
		return
	}
	w := *old
	w.ModelOrders++
	if has := func(m Model) bool { return m.ID == drop }; slices.ContainsFunc(w.Facts.Models, has) {
		w.Facts.Models = slices.DeleteFunc(slices.Clone(w.Facts.Models), has) // snapshots share the slice
	}
	f.replace(&w)
}

// EndModelOrder records that the order which BeginModelOrder announced has ended. If add has an ID, the worker serves
// that model from now on.
func (f *Fleet) EndModelOrder(id WorkerID, add Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.worker(id)
	if old == nil {
		return
	}
	w := *old
	w.ModelOrders++
	if add.ID != "" && !slices.ContainsFunc(w.Facts.Models, func(m Model) bool { return m.ID == add.ID }) {
		w.Facts.Models = append(slices.Clone(w.Facts.Models), add)
	}
	f.replace(&w)
}
