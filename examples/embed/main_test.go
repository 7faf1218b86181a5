package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
)

func TestAWorkerWithoutASchemeIsRefused(t *testing.T) {
	err := run(t.Context(), io.Discard, "mock", []string{"127.0.0.1:18010"})
	if err == nil || !strings.Contains(err.Error(), `worker "127.0.0.1:18010": write URL,EVENTS,REPLAY`) {
		t.Error(err)
	}
}

func TestThePromptReturnsToTheWorkerThatHasIt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var workers []string
	for range 2 {
		c := mockengine.DefaultConfig()
		c.Listen, c.Events, c.Replay, c.Speed = "127.0.0.1:0", "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 0
		engine, err := mockengine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := engine.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-engine.Ready()
		source := engine.Sources()[0]
		workers = append(workers, engine.URL()+","+source.Endpoint+","+source.Replay)
	}

	var out bytes.Buffer
	if err := run(ctx, &out, mockengine.DefaultConfig().Model, workers); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d decisions, want 3:\n%s", len(lines), &out)
	}
	url := strings.Fields(lines[0])[1]
	for _, line := range lines[1:] {
		// If the events have not come yet, the match is not confirmed, but predicted.
		if strings.Fields(line)[1] != url || !strings.Contains(line, " 192 of 200 prompt tokens matched") && !strings.Contains(line, ", 192 predicted") {
			t.Errorf("not sent where the prompt is cached:\n%s", &out)
		}
	}
}
