package admin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/internal/discovery"
)

// The paths of this file are those of sglang-router up to 0.2 and of vllm-router, which scripts and training frameworks
// call. Answers and errors are text, and a list of URLs [sglang-router 0.1.9, src/server.rs].

// peerAdd answers POST /add_worker?url=URL. The peers answer when the worker has answered; this router answers at once.
func (a *Admin) peerAdd(w http.ResponseWriter, r *http.Request) {
	var body Joining
	if body.URL = r.URL.Query().Get("url"); body.URL == "" {
		text(w, http.StatusBadRequest, "Worker URL required. Provide 'url' query parameter")
		return
	}
	if key := r.URL.Query().Get("api_key"); key != "" {
		body.APIKey = &key
	}
	url, err := a.add(&body)
	if err != nil {
		text(w, statusOf(err), err.Error())
		return
	}
	text(w, http.StatusOK, "Successfully added worker: "+url)
}

// peerRemove answers POST /remove_worker?url=URL. The peers answer 200 for an unknown worker, too.
func (a *Admin) peerRemove(w http.ResponseWriter, r *http.Request) {
	url := r.URL.Query().Get("url")
	if url == "" {
		text(w, http.StatusBadRequest, "Worker URL required. Provide 'url' query parameter")
		return
	}
	if _, err := a.remove(url, 0); err != nil && !errors.Is(err, discovery.ErrAbsent) {
		text(w, statusOf(err), err.Error())
		return
	}
	text(w, http.StatusOK, "Successfully removed worker: "+discovery.NormalURL(url))
}

// peerList answers GET /list_workers.
func (a *Admin) peerList(w http.ResponseWriter, _ *http.Request) {
	urls := []string{}
	for _, worker := range a.Router.Fleet().Snapshot().Workers() {
		urls = append(urls, worker.URL)
	}
	answer(w, http.StatusOK, map[string][]string{"urls": urls})
}

func text(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, strings.ToValidUTF8(message, "?")) // an error means that the client is gone
}
