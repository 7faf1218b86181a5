package snapshot

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/kvfeed"
)

// A giver needs seconds for a holder with millions of blocks. The other side sees that it is at work.
func TestAGiverSaysThatItIsAtWork(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	goOn := make(chan struct{})
	a.giver.least = 0 // the holder is small
	a.giver.rest = func(ctx context.Context, _ time.Duration) {
		select {
		case <-goOn:
		case <-ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.admin.URL+Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := a.keeper.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r, err := newReader(resp.Body, 1<<30) // the header comes before the first holder
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if kind := r.next(); kind != kindAlive {
			t.Fatalf("a section of kind %d, %v", kind, r.err)
		}
	}
	close(goOn)
	n, err := r.each(func(*kvfeed.Checkpoint) bool { return true }, func(*skippedHolder) {})
	if n != 1 || err != nil {
		t.Errorf("%d holders, %v", n, err)
	}
}

// A mistake in the code that collects a holder ends one answer, and not the router.
func TestAPanicEndsOnlyTheAnswer(t *testing.T) {
	e := newEngine(t, "http://a:1", 1, 5)
	a := warmSite(t, e)
	peer := server(t, false, a.giver.ServeHTTP)
	a.giver.least = 0 // the holder is small
	a.giver.rest = func(context.Context, time.Duration) { panic("a mistake") }
	k, text := askingKeeper(t)
	for range 2 { // the giver is not busy with the first answer for ever
		room := int64(1 << 30)
		k.ask(t.Context(), slices.Values([]string{peer}), nil, map[kvfeed.Place]bool{}, &room)
	}
	if all := text.String(); k.counts.peersFailed.Load() != 2 || strings.Contains(all, errBusy.Error()) || strings.Contains(all, "status") {
		t.Errorf("%s", all)
	}
}

func TestSectionsBetweenHoldersAreBounded(t *testing.T) {
	var out bytes.Buffer
	w, err := newWriter(&out, header{})
	for range 100 {
		w.alive()
	}
	small := sample()
	small.Runs = nil
	if err = errors.Join(err, w.holder(small)); err != nil {
		t.Fatal(err)
	}
	w.alive()
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	for room, want := range map[int64]error{1 << 20: nil, 50 << 10: errLarge} {
		r, err := newReader(bytes.NewReader(out.Bytes()), room)
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.each(func(*kvfeed.Checkpoint) bool { return true }, func(*skippedHolder) {})
		if !errors.Is(err, want) || want == nil && n != 1 {
			t.Errorf("with a room of %d bytes: %d holders, %v", room, n, err)
		}
	}
}
