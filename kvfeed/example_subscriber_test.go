package kvfeed_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvfeed"
)

// printer prints a stream. A real handler decodes the payloads with package kvevent.
type printer struct{ done func() }

func (p printer) Message(seq uint64, payload []byte) { fmt.Printf("message %d: %s\n", seq, payload) }
func (p printer) Restarted(why string)               { fmt.Println("restarted:", why) }
func (p printer) Lost(from, to uint64)               { fmt.Println("lost:", from, to) }
func (p printer) Behind(bool)                        {}
func (p printer) Unnumbered()                        { fmt.Println("no sequence numbers") }
func (p printer) Complete()                          { fmt.Println("complete"); p.done() }
func (p printer) State(connected bool, _ error)      { fmt.Println("connected:", connected) }

// A subscriber that connects after the first messages requests a replay of them.
func ExampleSubscriber() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	publisher := mockengine.NewPublisher(mockengine.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", Replay: "tcp://127.0.0.1:*"})
	if err := publisher.Listen(); err != nil {
		fmt.Println(err)
		return
	}
	wg.Go(func() { _ = publisher.Run(ctx) })
	publisher.Publish([]byte("one"))
	publisher.Publish([]byte("two"))

	whole, done := context.WithCancel(ctx)
	source := fleet.EventSource{Endpoint: publisher.Endpoint(), Replay: publisher.ReplayEndpoint()}
	subscriber := kvfeed.NewSubscriber(source, kvfeed.StreamConfig{}, printer{done})
	wg.Go(func() { _ = subscriber.Run(ctx) })
	<-whole.Done()
	// Output:
	// connected: true
	// message 0: one
	// message 1: two
	// complete
}
