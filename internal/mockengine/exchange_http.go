package mockengine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
)

// readOrder asks an engine for blocks: for the blocks of a request that has a lease or will have one (Room), or for
// blocks by their numbers. Real engines see only whether the engine is the right one. This one compares, too, whether
// the blocks are those that the reader expects: the digest of the first tokens of the request with the lease, or,
// without a lease, the hashes of the full blocks.
type readOrder struct {
	Engine    string        `json:"engine"`
	Request   string        `json:"request"`
	Room      string        `json:"room,omitempty"` // wait for this request, and read from the first block on
	Tokens    int           `json:"tokens"`
	Digest    uint64        `json:"digest"`
	Probe     bool          `json:"probe,omitempty"` // read only the first blocks of Hashes that the engine has
	First     int           `json:"first"`           // position of the first block in the reader's prompt
	BlockSize int           `json:"block_size"`
	Blocks    []int32       `json:"blocks"`
	Hashes    []engine.Hash `json:"hashes"`
	Bytes     float64       `json:"bytes"`
	GBs       float64       `json:"gbs"`
}

// readResult is the last line of the answer to a readOrder. The lines before it are empty: they stand for the blocks.
type readResult struct {
	Valid bool `json:"valid"` // the blocks have the expected hashes
	Known bool `json:"known"` // the request had a lease, which ends now
	// Cached is the number of the prompt's tokens that the other engine found in its cache.
	Cached  int    `json:"cached"`
	Found   int    `json:"found"`             // number of blocks that a probe brought
	Problem string `json:"problem,omitempty"` // why the blocks of a room did not come
}

// notice ends or renews the lease of a request at another engine.
type notice struct {
	URL     string `json:"-"`
	Request string `json:"request"`
}

// maxOrder bounds the size of a message to the side channel, in bytes. The largest one is an order of 1 Mi blocks.
const maxOrder = 32 << 20

// readPieces is the number of pieces in which the blocks of a read are sent.
const readPieces = 20

// readMessage reads a message to the side channel into v, such as a readOrder. If it cannot be read, the answer is 400.
func readMessage(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

// serveRead sends blocks to another engine, as fast as the slower of both links permits, and then ends the lease.
func (x *exchange) serveRead(w http.ResponseWriter, r *http.Request) {
	var o readOrder
	if !readMessage(w, r, &o) {
		return
	}
	switch {
	case o.Probe:
		x.serveProbe(w, r, &o)
		return
	case o.Room != "" && (o.Engine == "" || x.rankOf(o.Engine) != nil):
		x.serveRoom(w, r, &o)
		return
	}
	from := x.rankOf(o.Engine)
	if from == nil || o.BlockSize != x.life.cfg.BlockSize {
		http.Error(w, fmt.Sprintf("this is engine %s with blocks of %d tokens", x.name, x.life.cfg.BlockSize), http.StatusConflict)
		return
	}
	x.mu.Lock()
	held := x.leases[o.Request]
	if held != nil {
		held.readers++
	}
	x.mu.Unlock()
	complete := x.sendBlocks(r.Context(), w, &o)
	result := readResult{Known: held != nil}
	if held != nil {
		result.Valid = held.rank.has(held.request, &o)
	} else {
		result.Valid = from.holds(o.Blocks, o.Hashes)
	}
	if held != nil {
		x.mu.Lock()
		held.readers--
		x.mu.Unlock()
		x.wake()
	}
	if !complete {
		panic(http.ErrAbortHandler)
	}
	if !x.release(o.Request) {
		result.Known = false
		x.count(func(s *transferStats) { s.lateNotices++ })
	}
	_ = json.NewEncoder(w).Encode(result)
}

// serveRoom waits until the blocks of a room's request are computed, and then sends them to the reader.
func (x *exchange) serveRoom(w http.ResponseWriter, r *http.Request, o *readOrder) {
	rm := x.enter(o.Room)
	defer x.leave(rm)
	x.signal(rm.reader)
	complete := false
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	x.life.work.Add(1)
	go func() { // ends with the meeting, or with this request
		defer x.life.work.Done()
		select {
		case <-rm.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	select {
	case <-rm.leased:
		complete = x.sendBlocks(ctx, w, o)
	case <-rm.over:
	case <-x.life.dead:
	case <-r.Context().Done():
	}
	if !complete {
		x.finish(rm, "Aborted by AbortReq.")
		if r.Context().Err() != nil || x.life.isDead() {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(readResult{Problem: x.outcome(rm)})
		return
	}
	var result readResult
	if held := x.leaseOf(o.Room); held != nil {
		result = readResult{Valid: held.rank.has(held.request, o), Known: true, Cached: held.request.Cached}
	} else {
		result.Problem = "Aborted by AbortReq."
	}
	x.release(o.Room)
	x.finish(rm, result.Problem)
	_ = json.NewEncoder(w).Encode(result)
}

// sendBlocks takes the time of the transfer, and returns false if the reader or the engine is gone before its end.
func (x *exchange) sendBlocks(ctx context.Context, w http.ResponseWriter, o *readOrder) bool {
	flush := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	due, each := x.takeLink(o)
	for piece := range readPieces {
		if !x.life.server.faults.hold(ctx, transferHeld) {
			return false
		}
		if piece == readPieces/2 && x.life.dies(inTransfer) {
			<-ctx.Done()
			return false
		}
		due = due.Add(each)
		if !sleepUntil(ctx, x.life.dead, due) {
			return false
		}
		if _, err := io.WriteString(w, "\n"); err != nil || flush.Flush() != nil {
			return false
		}
	}
	return true
}

// takeLink reserves the link for a transfer. It returns the beginning of the transfer, and the time of each piece.
func (x *exchange) takeLink(o *readOrder) (begin time.Time, each time.Duration) {
	rate := x.config.GBs
	if o.GBs > 0 && (rate == 0 || o.GBs < rate) {
		rate = o.GBs
	}
	begin = time.Now()
	speed := x.life.cfg.Speed
	if rate == 0 || speed == 0 || !(o.Bytes > 0) {
		return begin, 0
	}
	whole := time.Duration(min(o.Bytes/(rate*1e9)/speed, time.Hour.Seconds()) * float64(time.Second))
	x.mu.Lock()
	defer x.mu.Unlock()
	begin = later(begin, x.linkFree)
	x.linkFree = begin.Add(whole)
	return begin, whole / readPieces
}

func sleepUntil(ctx context.Context, dead <-chan struct{}, due time.Time) bool {
	left := time.Until(due)
	if left <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-dead:
	case <-ctx.Done():
	}
	return false
}

func (x *exchange) serveRenew(w http.ResponseWriter, r *http.Request) {
	var n notice
	if readMessage(w, r, &n) {
		x.renew(n.Request)
	}
}

func (x *exchange) serveRelease(w http.ResponseWriter, r *http.Request) {
	var n notice
	if readMessage(w, r, &n) && !x.release(n.Request) {
		x.count(func(s *transferStats) { s.lateNotices++ })
	}
}

// read reads blocks from another engine. It returns an error if the engine is not there, is another one, or ends before
// the transfer does.
func (x *exchange) read(ctx context.Context, url string, o *readOrder) (result readResult, err error) {
	began := time.Now()
	response, err := x.post(ctx, url+"/mock/kv/read", o)
	if err == nil {
		defer response.Body.Close()
		err = errors.New("the transfer broke off")
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			if line := lines.Bytes(); len(line) > 0 {
				err = json.Unmarshal(line, &result)
			}
		}
	}
	x.count(func(s *transferStats) {
		if err != nil {
			s.failed++
			return
		}
		if result.Problem != "" {
			return
		}
		s.reads++
		s.seconds += time.Since(began).Seconds()
		s.bytes += o.Bytes
		if !result.Valid {
			s.stale++
		}
	})
	return result, err
}

// tell sends a notice, and does not wait long for its end.
func (x *exchange) tell(path string, n notice) {
	ctx, cancel := context.WithTimeout(x.life.ctx, 5*time.Second)
	defer cancel()
	response, err := x.post(ctx, n.URL+path, n)
	if err != nil {
		x.count(func(s *transferStats) { s.failedNotices++ })
		return
	}
	response.Body.Close()
}

// tellLater sends a release with the engine's next step. vLLM does the same: its scheduler tells its workers in a step.
func (x *exchange) tellLater(n notice) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.notices = append(x.notices, n)
}

// sendNotices sends the releases that waited for a step.
func (x *exchange) sendNotices() {
	x.mu.Lock()
	notices := x.notices
	x.notices = nil
	x.mu.Unlock()
	if len(notices) == 0 {
		return
	}
	x.life.work.Add(1)
	go func() { // ends when all notices are sent, or the life ends
		defer x.life.work.Done()
		for _, n := range notices {
			x.tell("/mock/kv/release", n)
		}
	}()
}

func (x *exchange) post(ctx context.Context, url string, v any) (*http.Response, error) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("bug: encode an order: " + err.Error())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := x.peers.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		response.Body.Close()
		return nil, fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(text))
	}
	return response, nil
}
