package admin

import (
	"net/http"

	"github.com/warmpath/warmpath/internal/replica"
)

// replicas shows the other routers that share their requests with this one.
func (a *Admin) replicas(w http.ResponseWriter, _ *http.Request) {
	out := replica.Status{Mode: "off", Peers: []replica.PeerStatus{}, Counts: replica.Traffic{Dropped: map[string]uint64{}}}
	if a.Replicas != nil {
		out = a.Replicas()
	}
	answer(w, http.StatusOK, out)
}
