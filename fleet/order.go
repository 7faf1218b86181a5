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
	f.order(id, func(facts *Facts) {
		if has := func(m Model) bool { return m.ID == drop }; slices.ContainsFunc(facts.Models, has) {
			facts.Models = slices.DeleteFunc(slices.Clone(facts.Models), has) // snapshots share the slice
		}
	})
}

// EndModelOrder records that the order which BeginModelOrder announced has ended. If add has an ID, the worker serves
// that model from now on.
func (f *Fleet) EndModelOrder(id WorkerID, add Model) {
	f.order(id, func(facts *Facts) {
		if add.ID != "" && !slices.ContainsFunc(facts.Models, func(m Model) bool { return m.ID == add.ID }) {
			facts.Models = append(slices.Clone(facts.Models), add)
		}
	})
}

// order counts the beginning or the end of an order to a worker, and changes the worker's models.
func (f *Fleet) order(id WorkerID, change func(*Facts)) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil {
		return
	}
	w := *old
	w.ModelOrders++
	change(&w.Facts)
	f.replace(&w)
}
