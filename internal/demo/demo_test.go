package demo

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDemoShowsWhatItPromises(t *testing.T) {
	var out bytes.Buffer
	results, err := Run(context.Background(), Options{Out: &out, Small: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"round_robin", "kv_aware", "found in a cache", "first token p50", "equal for", "What to try next"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if len(results) != 2 || results[1].HitRate() <= results[0].HitRate() {
		t.Errorf("kv_aware does not find more than round_robin:\n%s", out.String())
	}
	answered, equal := results[1].Requests()
	if answered != conversations/5*turns || equal < answered*8/10 {
		t.Errorf("%d of %d predictions were right\n%s", equal, answered, out.String())
	}
	if over := results[1].Over(); over > 0 {
		t.Errorf("%d requests were promised more than they found\n%s", over, out.String())
	}
}

// TestWhatTheDemoSaysToTryWorks runs each line that it prints, as a reader would.
func TestWhatTheDemoSaysToTryWorks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Options{Out: in, Small: true, Stay: true})
		_ = in.CloseWithError(io.EOF)
		ended <- err
	}()
	line := regexp.MustCompile(`curl (?:-i )?(http://\S+)(?: -d '(.*)')?`)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tried := 0
	for lines := bufio.NewScanner(out); tried < 3 && lines.Scan(); {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		tried++
		resp, err := client.Post(m[1], "application/x-www-form-urlencoded", strings.NewReader(m[2])) // as curl -d does
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", lines.Text(), resp.StatusCode, text)
		}
	}
	if tried != 3 {
		t.Errorf("%d lines to try", tried)
	}
	cancel()
	go io.Copy(io.Discard, out)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDemoEndsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Out: &bytes.Buffer{}, Small: true}); err == nil {
		t.Error("a demo that was ended says that it went well")
	}
}

func TestWorkloadIsTheSameEachTime(t *testing.T) {
	a, b := workload(1), workload(1)
	for i := range a {
		if a[i].system != b[i].system || strings.Join(a[i].asks, "|") != strings.Join(b[i].asks, "|") || string(a[i].tools) != string(b[i].tools) {
			t.Fatalf("conversation %d differs", i)
		}
	}
	if a[0].system != a[agentKinds].system || a[0].system == a[1].system {
		t.Error("agents of one kind share their system prompt, and of two kinds do not")
	}
}
