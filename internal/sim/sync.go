package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
)

// A crier is told by one router of the requests that this router places, and tells the other routers after
// Config.SyncDelay.
type crier struct {
	world *world
	from  int // index of its router
}

// telling is a message of one router to all others.
type telling struct {
	from      int
	kind      tellingKind
	id        uint64
	ending    warmpath.Ending
	placement warmpath.Placement
}

type tellingKind uint8

const (
	tellPlaced tellingKind = iota
	tellPrefilled
	tellFreed
)

func (c *crier) Placed(d *warmpath.Decision) {
	t := c.message(tellPlaced, d.ID())
	d.Placement(&t.placement)
	c.world.tell(t)
}

func (c *crier) PrefillCompleted(id uint64) { c.world.tell(c.message(tellPrefilled, id)) }

func (c *crier) Freed(id uint64, e warmpath.Ending) {
	t := c.message(tellFreed, id)
	t.ending = e
	c.world.tell(t)
}

// message returns a message with an empty placement.
func (c *crier) message(kind tellingKind, id uint64) *telling {
	w := c.world
	var t *telling
	if n := len(w.spareTellings); n > 0 {
		t, w.spareTellings = w.spareTellings[n-1], w.spareTellings[:n-1]
	} else {
		t = &telling{}
	}
	t.from, t.kind, t.id, t.ending = c.from, kind, id, warmpath.Ending{}
	return t
}

// tell sends a message. Messages of one router stay in order, as on one connection.
func (w *world) tell(t *telling) {
	if w.cfg.SyncDelay == 0 {
		w.hear(t)
		return
	}
	w.agenda.plan(moment{at: w.now + w.cfg.SyncDelay, kind: atTold, with: t})
}

// hear delivers a message to all routers but its sender.
func (w *world) hear(t *telling) {
	now := epoch + int64(w.now)
	for _, v := range w.main.views {
		p := v.peers[t.from]
		switch {
		case p == nil:
		case t.kind == tellPlaced:
			p.Add(&t.placement, now)
		case t.kind == tellPrefilled:
			p.PrefillCompleted(t.id, now)
		default:
			p.Free(t.id, t.ending, now)
		}
	}
	w.spareTellings = append(w.spareTellings, t)
}

// connect makes the peers of every router, if routers tell each other of their requests.
func (w *world) connect(p *pool) {
	if !w.cfg.Sync {
		return
	}
	for i, v := range p.views {
		v.router.SetReplicas(i, len(p.views))
		v.peers = make([]*warmpath.Peer, len(p.views))
		for j := range p.views {
			if i != j {
				v.peers[j] = v.router.NewPeer()
				v.peers[j].SetDelay(w.cfg.SyncDelay)
			}
		}
	}
}

// syncText says what routers tell each other.
func (c *Config) syncText() string {
	if !c.Sync {
		return "Routers tell each other nothing."
	}
	return fmt.Sprintf("Each router tells the others of each placement, first token and end; they hear of it after %v.", c.SyncDelay)
}

// syncs returns the settings of Config.Sync and Config.SyncDelay to play, from SyncDelay of the experiment.
func (x *Experiment) syncs() (all []Config, err error) {
	if len(x.SyncDelay) == 0 {
		return []Config{{}}, nil
	}
	if x.Routers < 2 {
		return nil, fmt.Errorf("sync_delay needs several routers, and there is one")
	}
	for _, s := range x.SyncDelay {
		if s = strings.TrimSpace(s); s == "off" {
			all = append(all, Config{})
			continue
		}
		delay, err := time.ParseDuration(s)
		if err != nil || delay < 0 {
			return nil, fmt.Errorf("sync delay %q is neither a duration such as 10ms nor off", s)
		}
		all = append(all, Config{Sync: true, SyncDelay: delay})
	}
	return all, nil
}
