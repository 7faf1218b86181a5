// Command embed routes requests to workers by the contents of their KV caches. It uses the router as a library, without
// a gateway. The file embed.go embeds the router. This file has the rest: flags, addresses of workers, and HTTP.
//
//	go run ./embed -model MODEL http://gpu-1:8000,tcp://gpu-1:5557,tcp://gpu-1:5657 http://gpu-2:8000,…
//
// Each argument is a worker: its URL, the endpoint of its KV events, and the endpoint of its replay socket.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

func main() {
	model := flag.String("model", "mock", "`NAME` of the model, as the workers serve it")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("name at least one worker: URL,EVENTS,REPLAY")
	}
	if err := run(context.Background(), os.Stdout, *model, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run routes one prompt three times. From the second time on, the router knows which worker has the prompt cached.
func run(ctx context.Context, out io.Writer, model string, addresses []string) error {
	workers, err := parse(model, addresses)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	router, feed, err := start(ctx, &running, workers, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}

	// The feed first learns what each worker has cached. A server need not wait for this: until then the router decides
	// by the load, and by the prompts that it sent to each worker.
	patience, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := feed.Ready(patience); err != nil {
		log.Print(err)
	}
	prompt := make([]block.Token, 200) // a program's tokens come from its tokenizer, or from vLLM's POST /tokenize
	for i := range prompt {
		prompt[i] = block.Token(1000 + i)
	}
	for range 3 {
		if err := ask(ctx, out, router, model, prompt); err != nil {
			return err
		}
	}
	return nil
}

// worker is what the router must know about a worker.
type worker struct {
	url   string
	facts fleet.Facts
}

// parse makes a worker of each address.
func parse(model string, addresses []string) (workers []worker, err error) {
	for _, address := range addresses {
		part := strings.Split(address+",,", ",") // fields that are not given are ""
		if u, err := url.Parse(part[0]); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("worker %q: write URL,EVENTS,REPLAY, such as http://gpu-1:8000,tcp://gpu-1:5557,tcp://gpu-1:5657", address)
		}
		// The facts here are an example: a real program fills in what its workers report. If the events show another
		// block size, the feed corrects the block size.
		facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: model}}, BlockSize: 16}
		if part[1] != "" {
			facts.Events = []fleet.EventSource{{Endpoint: part[1], Replay: part[2]}}
		}
		workers = append(workers, worker{part[0], facts})
	}
	return workers, nil
}

// outcomeOf returns the outcome of a request that send ended with err.
func outcomeOf(err error) fleet.Outcome {
	if err != nil {
		return fleet.OutcomeFailed
	}
	return fleet.OutcomeServed
}

// send sends the prompt to a worker and reads the answer to its end. It calls token for each piece of the answer; only
// the first call counts for the decision.
func send(ctx context.Context, worker, model string, prompt []block.Token, token func()) error {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 8, "stream": true})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, worker+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return fmt.Errorf("%s answered %s: %s", worker, response.Status, why)
	}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: {") {
			token()
		}
	}
	return lines.Err()
}
