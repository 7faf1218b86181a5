package indexer

import (
	"maps"
	"time"
)

// compare returns the models whose keys the service makes in another way than this router, and logs them. If only the
// block size differs, the router takes the service's.
func (c *Client) compare(list *listing) map[string]bool {
	refused, sized := map[string]bool{}, map[string]bool{}
	for i := range list.workers {
		w := &list.workers[i]
		if w.group != defaultGroup || w.blockSize == 0 || refused[w.model] {
			continue
		}
		algorithm, size, ok := c.router.Keying(w.model)
		switch {
		case !ok || algorithm.String() == w.algorithm && size == w.blockSize:
			continue
		case algorithm.String() == w.algorithm:
			if !sized[w.model] { // a service has one size for all workers of a model
				sized[w.model] = true
				c.noteSize(w.model, size, w.blockSize, time.Now())
				c.router.SetBlockSize(w.model, w.blockSize)
			}
			continue
		}
		refused[w.model] = true
		if !c.differing[w.model] {
			c.log.Error("the index service makes other block keys than this router, so its answers cannot be used: give both the same routing.block_keys",
				"service", c.config.URL, "model", w.model, "here", algorithm.String(), "there", c.blank(w.algorithm))
		}
	}
	c.differing = refused
	maps.DeleteFunc(c.sizes, func(_ string, s sizing) bool { return time.Since(s.last) >= sizeSteady })
	return refused
}

// sizing is the changes of a model's block size at the service, since the size was steady for sizeSteady.
type sizing struct {
	changes int
	last    time.Time
}

const (
	// sizeSteady is how long a block size must stay before another change is logged as the first one.
	sizeSteady = time.Minute
	// fewSizes is how many changes are no reason for a warning: a service that starts may learn the size from events.
	fewSizes = 2
)

// noteSize logs that the service has blocks of another size. If the size goes on changing, noteSize warns once.
func (c *Client) noteSize(model string, was, is int, now time.Time) {
	s := c.sizes[model]
	switch s.changes++; {
	case s.changes <= fewSizes:
		c.log.Info("the index service has blocks of another size: the router takes its size", "model", model, "was", was, "is", is)
	case s.changes == fewSizes+1:
		c.log.Warn("the block size of the index service changes to and fro, and answers in another size are not used: if there are several services behind index.url, give them the same block size",
			"service", c.config.URL, "model", model, "was", was, "is", is)
	}
	s.last = now
	c.sizes[model] = s
}
