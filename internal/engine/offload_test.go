package engine

import (
	"testing"

	"github.com/warmpath/warmpath/block"
)

func withTier(c *Config) {
	c.Blocks, c.CPUBlocks, c.Describe = 17, 64, true
}

// tierEvents keeps the events of one tier.
func tierEvents(events []Event, tier block.Tier) []Event {
	var out []Event
	for _, e := range events {
		if e.Tier == tier && e.Kind != Cleared {
			out = append(out, e)
		}
	}
	return out
}

func TestOffloadedBlocksAreAnnouncedLaterChildFirst(t *testing.T) {
	e := small(t, withTier)
	if err := e.Submit(&Request{Prompt: tokens(0, 9), Output: tokens(900, 2), Scope: block.Scope{LoRA: "a", Salt: "s"}}); err != nil {
		t.Fatal(err)
	}
	var first, second Step
	e.Step(&first)
	if len(first.Events) != 1 || first.Events[0].Tier != block.TierGPU || first.Events[0].Salt != "s" {
		t.Fatalf("first step's events: %+v", first.Events)
	}
	parent := first.Events[0].Hashes[0]
	e.Step(&second)
	cpu := tierEvents(second.Events, block.TierCPU)
	if len(cpu) != 2 || !cpu[0].HasParent || cpu[0].Parent != parent || cpu[1].HasParent || cpu[1].Hashes[0] != parent {
		t.Fatalf("CPU events: %+v, want the child, then the parent", cpu)
	}
	if cpu[1].Salt != "" || cpu[1].LoRA != "a" || len(cpu[1].Tokens) != 4 {
		t.Errorf("CPU event: %+v, want tokens and adapter, no salt", cpu[1])
	}
}

func TestPlaceholdersCarryOnlyHashes(t *testing.T) {
	e := small(t, func(c *Config) { withTier(c); c.Describe = false })
	cpu := tierEvents(serve(t, e, &Request{Prompt: tokens(0, 9), Output: tokens(900, 2)}), block.TierCPU)
	if len(cpu) != 2 {
		t.Fatalf("%d CPU events, want 2", len(cpu))
	}
	for _, ev := range cpu {
		if len(ev.Hashes) != 1 || ev.BlockSize != 0 || len(ev.Tokens) != 0 || ev.HasParent {
			t.Errorf("placeholder: %+v", ev)
		}
	}
}

func TestReloadedBlocksCountAsCachedAndAreAnnouncedAgain(t *testing.T) {
	for _, mode := range []Offload{OffloadOnStore, OffloadOnEvict} {
		e := small(t, func(c *Config) { withTier(c); c.Offload = mode })
		prompt := tokens(0, 33)
		serve(t, e, &Request{Prompt: prompt, Output: tokens(900, 2)})
		// This request evicts most blocks of the first request.
		serve(t, e, &Request{Prompt: tokens(500, 60), Output: tokens(900, 2)})
		serve(t, e, &Request{Prompt: tokens(700, 9), Output: tokens(900, 2)})
		r := &Request{Prompt: prompt, Output: tokens(900, 2)}
		events := tierEvents(serve(t, e, r), block.TierGPU)
		if r.Cached != 32 || r.Loaded == 0 {
			t.Errorf("mode %d: cached %d, loaded %d, want 32 in all, some from the CPU", mode, r.Cached, r.Loaded)
		}
		stored := 0
		for _, ev := range events {
			if ev.Kind == Stored {
				stored += len(ev.Hashes)
			}
		}
		if stored != r.Loaded/4 {
			t.Errorf("mode %d: %d blocks announced on the accelerator, want the %d that were loaded", mode, stored, r.Loaded/4)
		}
	}
}

func TestAResetLeavesTheCPUTierAlive(t *testing.T) {
	e := small(t, withTier)
	prompt := tokens(0, 33)
	serve(t, e, &Request{Prompt: prompt, Output: tokens(900, 2)})
	if !e.Reset() {
		t.Fatal("reset refused")
	}
	r := &Request{Prompt: prompt, Output: tokens(900, 2)}
	events := serve(t, e, r)
	if r.Cached != 32 || r.Loaded != 32 {
		t.Errorf("cached %d, loaded %d, want 32 from the CPU", r.Cached, r.Loaded)
	}
	if cpu := tierEvents(events, block.TierCPU); len(cpu) != 0 {
		t.Errorf("the CPU tier was announced again: %+v", cpu)
	}
}

func TestTheCPUTierRemovesManyHashesInOneEvent(t *testing.T) {
	e := small(t, func(c *Config) { withTier(c); c.CPUBlocks = 8 })
	serve(t, e, &Request{Prompt: tokens(0, 33), Output: tokens(900, 2)})
	cpu := tierEvents(serve(t, e, &Request{Prompt: tokens(500, 25), Output: tokens(900, 2)}), block.TierCPU)
	if len(cpu) != 7 || cpu[0].Kind != Removed || len(cpu[0].Hashes) != 6 {
		t.Fatalf("CPU events %+v, want one removal of 6 hashes, then 6 stored", cpu)
	}
}
