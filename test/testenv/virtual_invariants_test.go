package testenv_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvindex"
)

const (
	// settle is the longest permitted time from the end of all faults to the router's recovery. A breaker that opened
	// several times makes a trial only every 30 s. Health checks are made every 5 s. A replay may take 20 s, and the
	// router may request it twice.
	settle = 4 * time.Minute
	// idle is longer than the router keeps an unused connection.
	idle = 45 * time.Second
	// noticed is longer than the time until the router reads the metrics of a worker that is healthy again: after failures
	// the router asks only every 30 s. noticed is shorter than the time for which most policies remember where a request
	// was sent.
	noticed = 40 * time.Second
)

// check checks the promises that must hold after every step.
func (w *world) check() {
	synctest.Wait()
	w.mu.Lock()
	under := len(w.asks)
	var late []string
	for _, a := range w.asks {
		if d := time.Since(a.began); d > a.limit {
			late = append(late, fmt.Sprintf("%s is not answered after %v", a.what, d))
		}
	}
	w.mu.Unlock()
	if len(late) > 0 {
		w.problem("%s", late[0])
		return
	}
	if under == 0 {
		w.atRest()
	}
	for _, x := range w.router.Router().IndexStats() {
		if x.Bytes > x.Budget {
			w.problem("the index of %s has %d bytes, over its budget of %d", x.Model, x.Bytes, x.Budget)
		}
	}
}

// atRest checks the promises that must hold when no client waits. It gives the router 20 s, because the router still
// works for a short time after a client has left.
func (w *world) atRest() {
	for try := 0; ; try++ {
		why := w.busy()
		if why == "" {
			return
		}
		w.mu.Lock()
		under := len(w.asks)
		w.mu.Unlock()
		if under > 0 {
			return
		}
		if try == 20 {
			w.problem("no request is under way, and %s", why)
			return
		}
		pass(time.Second) // the router may still dial for a request whose client has left
		synctest.Wait()
	}
}

// busy describes load that the fleet still counts; "": the fleet counts no load.
func (w *world) busy() string {
	snap := w.router.Router().Fleet().Snapshot()
	for h := range snap.Holders() {
		l := snap.Load(fleet.Holder(h))
		if l.Requests != 0 || l.Waiting != 0 || l.PrefillTokens != 0 || l.PendingTokens != 0 || l.ContextBlocks != 0 || l.ContextTokens != 0 || l.OutputTokens != 0 {
			return fmt.Sprintf("holder %d has load %+v", h, l)
		}
		if n := snap.Leaked(fleet.Holder(h)); n != 0 {
			return fmt.Sprintf("holder %d has leaked %d requests", h, n)
		}
	}
	return ""
}

// calm ends all faults, and checks the promises that must hold when there are no faults.
func (w *world) calm() {
	for _, e := range w.engines {
		e.heal()
	}
	w.orders.Wait()
	for _, e := range w.engines {
		if e.server == nil || e.dead || e.killed {
			e.replace(nil)
		}
		e.set(mockengine.Faults{})
		for rank := range e.setup.Ranks {
			e.server.DropNextEvents(rank, 0)
		}
	}
	w.eventually(w.setup.RequestTimeout+margin+time.Minute, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, a := range w.asks {
			if a.how != "slow" {
				return fmt.Sprintf("%s is not answered after %v", a.what, time.Since(a.began))
			}
		}
		return ""
	})
	if w.eventually(settle, w.unready) && w.eventually(noticed, w.remembers) && w.serves() {
		w.eventually(settle, w.untrue)
	}
	w.acquaint()
}

// heal ends the temporary faults of an engine, and the faults of its network.
func (e *engine) heal() {
	e.host.Lose(false)
	e.host.Delay(0)
	close(e.undone)
	e.undone = make(chan struct{})
}

// eventually waits until wrong returns "". If this takes longer than d, it records a problem and returns false. If the
// run has a problem already, it returns false immediately.
func (w *world) eventually(d time.Duration, wrong func() string) bool {
	for end := time.Now().Add(d); ; {
		synctest.Wait()
		why := wrong()
		switch {
		case why == "":
			return true
		case w.first() != "":
			return false
		case !time.Now().Before(end):
			w.problem("%v of calm, and %s", d, why)
			w.explain()
			return false
		}
		pass(500 * time.Millisecond)
	}
}

// listed returns the engines in the router's configuration.
func (w *world) listed() (list []*engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.engines {
		for _, t := range w.next.Workers {
			if t.URL == e.url() {
				list = append(list, e)
			}
		}
	}
	return list
}

// known returns the router's worker at the engine's address, or nil.
func (w *world) known(snap *fleet.Snapshot, e *engine) *fleet.Worker {
	for _, k := range snap.Workers() {
		if k.URL == e.url() {
			return k
		}
	}
	return nil
}

// unready describes a worker that the router should use but does not use; "": there is none.
func (w *world) unready() string {
	snap, now := w.router.Router().Fleet().Snapshot(), time.Now().UnixNano()
	for _, e := range w.listed() {
		k := w.known(snap, e)
		switch {
		case k == nil:
			return e.ip + " is not in the fleet"
		case !k.Ready:
			return fmt.Sprintf("%s is not ready: %s", e.ip, k.Why)
		case len(k.Holders) != e.setup.Ranks:
			return fmt.Sprintf("%s has %d ranks for the router, and %d in truth", e.ip, len(k.Holders), e.setup.Ranks)
		case !slices.ContainsFunc(k.Facts.Models, func(m fleet.Model) bool { return m.ID == e.setup.Model }):
			return fmt.Sprintf("%s serves %v for the router, and %s in truth", e.ip, k.Facts.Models, e.setup.Model)
		}
		for _, h := range k.Holders {
			if !snap.Available(h, now) {
				return fmt.Sprintf("rank %d of %s is not available", snap.Rank(h), e.ip)
			}
		}
	}
	if len(snap.Workers()) != len(w.listed()) {
		return fmt.Sprintf("the fleet has %d workers, the file %d", len(snap.Workers()), len(w.listed()))
	}
	return ""
}

// serves sends a request to each rank, and then requests whose worker the policy chooses. All requests must be
// answered, because the workers are healthy and idle. The events of these requests show the router whether it missed
// earlier messages. Each prompt has a block that no other prompt has, because a worker that has cached all blocks of a
// prompt sends no event.
func (w *world) serves() bool {
	for _, e := range w.listed() {
		for rank := range e.setup.Ranks {
			if !w.served(e, rank) {
				return false
			}
		}
	}
	for _, e := range w.listed() {
		if !w.served(&engine{setup: e.setup}, 0) {
			return false
		}
	}
	return true
}

// served sends a request to a rank of e, at most four times. If e has no address, the policy chooses the worker.
func (w *world) served(e *engine, rank int) bool {
	for try := 0; ; try++ {
		key, ids := w.prompt(uint64(time.Now().UnixNano()>>20), 2*e.setup.BlockSize)
		a := &ask{
			what: "a calm request", key: key + " calm", prompt: key, model: e.setup.Model, path: "/v1/completions", limit: w.setup.RequestTimeout + margin,
			body: fmt.Appendf(nil, `{"model":%q,"max_tokens":3,"prompt":%s}`, e.setup.Model, line(ids)),
		}
		if e.ip != "" {
			a.what, a.target, a.rank = fmt.Sprintf("a calm request to rank %d of %s", rank, e.ip), e.url(), rank
		}
		w.send(a)
		w.eventually(a.limit, func() string {
			if w.waiting(a) {
				return a.what + " is not answered"
			}
			return ""
		})
		pass(2 * time.Second)
		switch {
		case a.outcome == "200":
			return true
		case w.first() != "" || try == 3:
			w.problem("%s ended with %s", a.what, a.outcome)
			return false
		}
		// An old connection may have failed. For some time the router counts such a failure against the worker.
		pass(10 * time.Second)
		if !w.eventually(settle, w.unready) {
			return false
		}
	}
}

func (w *world) waiting(a *ask) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.asks, a)
}

// untrue describes an error of the index; "": there is no error. It is an error if the index claims a block that the
// engine has not cached, if the index lacks a block of a holder with exact trust, or if a holder's trust is not exact
// although the router can know its cache completely.
func (w *world) untrue() string {
	r := w.router.Router()
	snap := r.Fleet().Snapshot()
	held := map[fleet.Holder]map[uint64]bool{}
	owner := map[fleet.Holder]*engine{}
	index, size := map[fleet.Holder]kvindex.HolderStats{}, map[fleet.Holder]int{}
	for _, x := range r.IndexStats() {
		for _, h := range x.Holders {
			index[h.Holder], size[h.Holder] = h, x.BlockSize
		}
	}
	for _, e := range w.listed() {
		k := w.known(snap, e)
		if k == nil {
			return e.ip + " is not in the fleet"
		}
		for _, h := range k.Holders {
			held[h], owner[h] = map[uint64]bool{}, e
			trust, why := snap.Trust(h)
			// Trust may be lower while blocks wait for an unknown parent. This happens after a reset of the accelerator's cache,
			// when the engine announces copies of the old blocks on lower tiers.
			if trust != fleet.TrustExact && e.provable() && !w.indexFull() && index[h].Waiting == 0 {
				return fmt.Sprintf("%s rank %d is %s and not exact: %s", e.ip, snap.Rank(h), trust, why)
			}
			for _, tier := range []block.Tier{block.TierGPU, block.TierCPU} {
				hashes := e.server.CachedHashes(snap.Rank(h), tier)
				for _, hash := range hashes {
					held[h][hash] = true
				}
				cached, claimed := len(hashes)*e.setup.BlockSize, int(index[h].Blocks[tier])*size[h]
				if trust != fleet.TrustExact || claimed == cached {
					continue
				}
				if claimed < cached {
					// The index may have fewer tokens in two cases. Engine blocks that are larger than the router's blocks may begin
					// alike, and then share blocks of the router. Placeholders (events without tokens) may name blocks that the
					// accelerator has evicted.
					if size[h] != e.setup.BlockSize || tier != block.TierGPU && e.setup.Placeholders {
						continue
					}
					if short := (cached - claimed) / e.setup.BlockSize; short <= e.doubles(snap.Rank(h), tier, hashes) {
						continue
					}
				}
				return fmt.Sprintf("%s rank %d is exact (%s) with %d tokens on tier %s in the index and %d in its cache; %+v",
					e.ip, snap.Rank(h), why, claimed, tier, cached, index[h])
			}
		}
	}
	for _, key := range w.recent[max(0, len(w.recent)-40):] {
		if why := w.overclaimed(w.prompts[key], held, owner); why != "" {
			return why
		}
	}
	return ""
}

// acquaint waits until the router has read the metrics of each worker's process. The router notices a restart by
// comparing metrics, so it must have read the metrics of the process before.
func (w *world) acquaint() {
	guesses := slices.ContainsFunc(w.engines, func(e *engine) bool { return e.setup.NoEvents })
	if w.first() != "" || w.setup.Reports == 0 || !guesses && !slices.Contains(learning, w.setup.Policy) {
		return
	}
	pass(noticed)
	for _, e := range w.listed() {
		w.mu.Lock()
		e.seen, e.refuse = true, false
		w.mu.Unlock()
	}
}

// remembers describes an error in what the router learned from requests; "": there is no error. It is an error if the
// router learned a part of a prompt from requests to an earlier process of a worker, and still expects this part in the
// cache of the current process.
func (w *world) remembers() string {
	snap := w.router.Router().Fleet().Snapshot()
	for _, e := range w.listed() {
		w.mu.Lock()
		born, visible := e.born, e.restartVisible
		var since [][]uint32 // prompts that may have been sent to the current process
		for key, at := range w.used {
			if !at.Before(born) {
				since = append(since, w.prompts[key])
			}
		}
		w.mu.Unlock()
		k := w.known(snap, e)
		if !visible || k == nil {
			continue
		}
		for _, key := range w.recent[max(0, len(w.recent)-40):] {
			ids, seen := w.prompts[key], 0
			for _, other := range since {
				seen = max(seen, common(ids, other))
			}
			if seen == len(ids) {
				continue
			}
			for _, model := range []string{"mock", "other"} {
				if has, by := w.learned(k, model, ids); has > seen {
					return fmt.Sprintf("%s is said to have %d tokens of a prompt of %d by %s; since it restarted it was asked for %d of them at most",
						e.ip, has, len(ids), by, seen)
				}
			}
		}
	}
	return ""
}

// common returns the length of the common prefix of two prompts.
func common(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// learned returns how many tokens of a prompt the router expects in a worker's caches because it sent requests there.
// by is the name of the policy that expects these tokens.
func (w *world) learned(k *fleet.Worker, model string, ids []uint32) (most int, by string) {
	d, _ := w.router.Router().Explain(context.Background(), &warmpath.Request{Model: model, Tokens: ids, Now: time.Now().UnixNano()})
	if d == nil {
		return 0, ""
	}
	defer d.Recycle()
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Worker.ID != k.ID {
			continue
		}
		if c.Trust == fleet.TrustApproximate || d.Policy == "estimated" {
			most = max(most, c.Match, c.Predicted)
		}
		for t, name := range d.Terms {
			switch name {
			case "sent before": // this term is a share of the prompt's tokens
				most = max(most, int(c.Terms[t]*float64(len(ids))))
			case "hits": // this term is a share of the tokens in the prompt's full blocks
				most = max(most, int(c.Terms[t]*float64(len(ids)/16*16)))
			}
		}
	}
	return most, d.Policy
}

// explain adds problems that say where each engine's events and its cache differ.
func (w *world) explain() {
	for _, e := range w.listed() {
		if !e.provable() || e.server == nil {
			continue
		}
		for rank := range e.setup.Ranks {
			w.problem("%s rank %d: %s", e.ip, rank, e.reported(rank, block.TierGPU, e.server.CachedHashes(rank, block.TierGPU)))
		}
	}
}

// provable reports whether the router can know the engine's cache completely. This needs events of the engine, and a
// replay that has all of them.
func (e *engine) provable() bool {
	e.world.mu.Lock()
	defer e.world.mu.Unlock()
	for _, t := range e.world.next.Workers {
		if t.URL == e.url() && t.Events == discovery.None {
			return false // the router's configuration says that the engine publishes no events
		}
	}
	return !e.setup.NoEvents && !e.setup.NoReplay && !e.setup.Hidden && e.setup.BufferSteps >= 10000
}

// indexFull reports whether the index has evicted or refused blocks. Trust may be lower then.
func (w *world) indexFull() bool {
	for _, x := range w.router.Router().IndexStats() {
		if x.Evictions > 0 || x.WaitingDropped > 0 || x.Refused > 0 {
			return true
		}
	}
	return false
}

// overclaimed describes a holder for which the router claims a longer part of a prompt than the engine has cached; "":
// there is no such holder.
func (w *world) overclaimed(ids []uint32, held map[fleet.Holder]map[uint64]bool, owner map[fleet.Holder]*engine) string {
	for _, model := range []string{"mock", "other"} {
		d, _ := w.router.Router().Explain(context.Background(), &warmpath.Request{Model: model, Tokens: ids, Now: time.Now().UnixNano()})
		if d == nil {
			continue
		}
		for _, c := range d.Candidates {
			e := owner[c.Holder]
			if e == nil || c.Trust == fleet.TrustApproximate {
				continue // a match with approximate trust comes from requests, and may be too long
			}
			if has := e.leading(ids, held[c.Holder]); c.Match > has {
				if !e.provable() && c.Trust != fleet.TrustExact {
					// The engine no longer has the events of the eviction for replay, so the router cannot know.
					continue
				}
				return fmt.Sprintf("%s rank %d (%s) is said to have %d tokens of a prompt of %d, and has %d", e.ip, c.Rank, c.Trust, c.Match, len(ids), has)
			}
		}
		d.Recycle()
	}
	return ""
}

// leading returns how many tokens of the prompt, from its start on, are in cached blocks. held has the hashes of the
// cached blocks.
func (e *engine) leading(ids []uint32, held map[uint64]bool) int {
	chain := block.EngineChain{Algorithm: block.VLLMSHA256CBOR, Size: e.setup.BlockSize, Seed: block.DefaultSeed}
	if e.setup.Kind == mockengine.SGLang {
		chain = block.EngineChain{Algorithm: block.SGLangSHA256, Size: e.setup.BlockSize}
	}
	h, err := block.NewEngineHasher(chain)
	if err != nil {
		panic(err)
	}
	n := 0
	for _, d := range h.Append(nil, h.Root("", ""), ids, nil) {
		if !held[h.Normal(d)] {
			break
		}
		n += e.setup.BlockSize
	}
	return n
}

// waiting matches the answer of /admin/queue when requests wait.
var waiting = regexp.MustCompile(`"requests": *[1-9]`)

// small checks the state after a calm and some time without requests: no goroutine and no connection of a request may
// be left. small runs only at the end of a history, because it takes much virtual time, and because a leak of any step
// is still there at the end.
func (w *world) small() {
	if w.first() != "" {
		return
	}
	pass(idle)
	synctest.Wait()
	w.check()
	if metrics, err := w.operator("GET", "/metrics"); err != nil {
		w.problem("GET /metrics: %v", err)
	} else if !bytes.Contains(metrics, []byte("\nwarmpath_panics_total 0\n")) {
		w.problem("a request panicked")
	}
	if queue, err := w.operator("GET", "/admin/queue"); err != nil {
		w.problem("GET /admin/queue: %v", err)
	} else if waiting.Match(queue) {
		w.problem("requests wait when nothing happens: %s", queue)
	}
	ranks := 0
	for _, e := range w.engines {
		ranks += e.setup.Ranks
	}
	// The client has two connections to the router. The router has three connections to each worker (for the probe, the
	// load reports and token questions), and two connections to each rank for events.
	if most := 2 + 3*len(w.engines) + 2*ranks; w.network.Open() > most {
		w.problem("%d connections are open when nothing happens, more than %d", w.network.Open(), most)
	}
	w.mu.Lock()
	under := len(w.asks)
	w.mu.Unlock()
	left := stacks(w.bubble)
	if under == 0 && len(left) > 40+40*len(w.engines)+20*ranks {
		w.problem("%d goroutines are left when nothing happens:\n%s", len(left), sorted(left))
	}
}

// sorted counts stacks by the function that created the goroutine, and returns a line for each function.
func sorted(stacks []string) string {
	counts := map[string]int{}
	for _, s := range stacks {
		lines := strings.Split(s, "\n")
		counts[lines[len(lines)-1]]++
	}
	var b strings.Builder
	for _, at := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%6d %s\n", counts[at], strings.TrimSpace(at))
	}
	return b.String()
}
