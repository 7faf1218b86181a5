package main

import (
	"bytes"
	"context"
	"io"
	"os"
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

// A program embeds the router in 40 lines. embed.go is the proof of this promise, so it must stay short.
func TestTheRouterIsEmbeddedInFortyLines(t *testing.T) {
	text, err := os.ReadFile("embed.go")
	if err != nil {
		t.Fatal(err)
	}
	_, below, found := strings.Cut(string(text), "\n)\n")
	if !found {
		t.Fatal("embed.go has no imports")
	}
	code := 0
	for line := range strings.Lines(below) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			code++
		}
	}
	if code == 0 || code > 40 {
		t.Errorf("embed.go has %d lines of code below the imports, want at most 40", code)
	}
}
