// Command follow prints the blocks that an engine stores and removes, as its KV events announce them.
//
//	vllm serve MODEL --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq",
//	  "endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}'
//	go run ./follow -events tcp://127.0.0.1:5557 -replay tcp://127.0.0.1:5657
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
)

func main() {
	var source fleet.EventSource
	flag.StringVar(&source.Endpoint, "events", "tcp://127.0.0.1:5557", "`ENDPOINT` of the engine's PUB socket")
	flag.StringVar(&source.Replay, "replay", "", "`ENDPOINT` of its replay socket; without it, earlier events are not known")
	flag.StringVar(&source.Topic, "topic", "", "`PREFIX` of the topic; empty for every message")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := follow(ctx, source, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// follow prints the events of source until ctx ends.
func follow(ctx context.Context, source fleet.EventSource, out io.Writer) error {
	h := &handler{out: out, copies: map[place]int{}}
	return kvfeed.NewSubscriber(source, kvfeed.StreamConfig{}, h).Run(ctx)
}

// place says where a block is. An engine may have several copies of a block in one place, and announces each copy.
type place struct {
	tier  block.Tier
	group int
	hash  kvevent.Hash
}

// handler prints one stream. A Subscriber calls the methods one at a time, so the handler needs no lock.
type handler struct {
	out     io.Writer
	copies  map[place]int
	state   string // state of the connection, as it was printed last
	decoder kvevent.Decoder
	batch   kvevent.Batch // reused: the events are valid until the next call of Decode
}

// Message implements [kvfeed.Handler].
func (h *handler) Message(seq uint64, payload []byte) {
	if err := h.decoder.Decode(payload, &h.batch); err != nil {
		h.forget(fmt.Sprintf("message %d cannot be read and may have removed blocks: %v", seq, err))
		return
	}
	for more := true; more; more = h.decoder.Next(&h.batch) { // a long message comes in several batches
		for i := range h.batch.Events {
			h.apply(seq, &h.batch.Events[i])
		}
		if h.batch.Skipped > 0 {
			fmt.Fprintf(h.out, "%d has %d events that cannot be used: %s\n", seq, h.batch.Skipped, h.batch.Problem)
		}
		if h.batch.Incomplete {
			h.forget(fmt.Sprintf("message %d removes blocks in an event that cannot be read: %s", seq, h.batch.Problem))
		}
	}
}

func (h *handler) apply(seq uint64, e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Stored:
		for _, hash := range e.Hashes {
			h.copies[place{e.Tier, e.Group, hash}]++
		}
		after := "at the beginning of a prompt"
		if e.HasParent {
			after = fmt.Sprintf("after %016x", e.Parent)
		}
		fmt.Fprintf(h.out, "%d stored on %s: %d blocks of %d tokens %s: %016x", seq, e.Tier, len(e.Hashes), e.BlockSize, after, e.Hashes)
	case kvevent.Removed:
		for _, hash := range e.Hashes {
			at := place{e.Tier, e.Group, hash}
			if h.copies[at]--; h.copies[at] <= 0 || e.LastCopies {
				delete(h.copies, at)
			}
		}
		fmt.Fprintf(h.out, "%d removed from %s: %d blocks: %016x", seq, e.Tier, len(e.Hashes), e.Hashes)
	case kvevent.Cleared:
		// Only one tier was cleared: vLLM's offload tiers survive a reset of the accelerator's cache.
		for at := range h.copies {
			if at.tier == e.Tier {
				delete(h.copies, at)
			}
		}
		fmt.Fprintf(h.out, "%d cleared %s", seq, e.Tier)
	}
	fmt.Fprintf(h.out, "; %d blocks now\n", len(h.copies))
}

// forget drops everything: a lost event may have removed any block.
func (h *handler) forget(why string) {
	clear(h.copies)
	fmt.Fprintln(h.out, "forgotten:", why)
}

// Restarted implements [kvfeed.Handler].
func (h *handler) Restarted(why string) { h.forget("the engine began again: " + why) }

// Lost implements [kvfeed.Handler].
func (h *handler) Lost(from, to uint64) {
	if to <= from {
		h.forget(fmt.Sprintf("messages from %d on may be lost: the connection broke, and there is no replay", from))
		return
	}
	h.forget(fmt.Sprintf("messages from %d up to, not including, %d are lost", from, to))
}

// Behind implements [kvfeed.Handler]. While messages are missing, the Subscriber keeps later messages back. So all
// messages are printed in order.
func (h *handler) Behind(bool) {}

// Complete implements [kvfeed.Handler].
func (h *handler) Complete() { fmt.Fprintln(h.out, "the history is complete") }

// Unnumbered implements [kvfeed.Handler].
func (h *handler) Unnumbered() {
	fmt.Fprintln(h.out, "messages have no sequence numbers: a lost one goes unnoticed")
}

// State implements [kvfeed.Handler].
func (h *handler) State(connected bool, err error) {
	state := "connected"
	if !connected {
		state = fmt.Sprint("not connected: ", err)
	}
	if state != h.state { // a Subscriber retries without end, and reports each failure
		fmt.Fprintln(h.out, state)
	}
	h.state = state
}
