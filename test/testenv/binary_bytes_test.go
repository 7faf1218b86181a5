package testenv_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// fastBackend starts a worker that answers every chat request without delay. It first reads the whole body and checks
// that the body arrived unchanged: it must equal want(id), where id is the header X-Request-Id. The answer is a stream
// that depends only on id.
func fastBackend(t *testing.T, want func(id string) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"mock","object":"model","root":"mock","max_model_len":131072}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the backend reads the body: %v", err)
		}
		id := r.Header.Get("X-Request-Id")
		if !bytes.Equal(body, want(id)) {
			t.Errorf("request %s: the body changed on its way (%d bytes, want %d)", id, len(body), len(want(id)))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range streamEvents {
			io.WriteString(w, event(id, i))
			if i%8 == 0 {
				w.(http.Flusher).Flush()
			}
		}
	})
	server := &http.Server{Handler: mux}
	go server.Serve(l) // ends with Close
	t.Cleanup(func() { server.Close() })
	return "http://" + l.Addr().String()
}

const streamEvents = 40

func event(id string, i int) string {
	switch i {
	case streamEvents - 2:
		return fmt.Sprintf("data: {\"id\":%q,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", id)
	case streamEvents - 1:
		return "data: [DONE]\n\n"
	}
	return fmt.Sprintf("data: {\"id\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":null}]}\n\n", id, strings.Repeat("x", 20+i*7%90))
}

func TestTwoHundredStreamsLoseNoByte(t *testing.T) {
	requestBody := func(id string) []byte {
		return fmt.Appendf(nil, `{ "zeta": 1.50, "messages" : [{"content":"%s","role":"user"}], "unknown":{"b":[1,2],"a":null},"stream":true, "model":"mock"}`,
			strings.Repeat(id+" ", 8192/(len(id)+1)))
	}
	backend := fastBackend(t, requestBody)
	gateway := testenv.Serve(t, "--worker", backend)
	gateway.Ready(t)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200, MaxConnsPerHost: 200}}
	var wg sync.WaitGroup
	for c := range 200 {
		wg.Go(func() {
			for n := range 20 {
				id := fmt.Sprintf("req-%d-%d", c, n)
				req, err := http.NewRequest(http.MethodPost, gateway.URL+"/v1/chat/completions", bytes.NewReader(requestBody(id)))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X-Request-Id", id)
				resp, err := client.Do(req)
				if err != nil {
					t.Errorf("request %s: %v", id, err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				var want strings.Builder
				for i := range streamEvents {
					want.WriteString(event(id, i))
				}
				if err != nil || string(got) != want.String() {
					t.Errorf("request %s: %d bytes of %d arrived unchanged or not at all (status %d, error %v)", id, len(got), want.Len(), resp.StatusCode, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
