package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/connector"
	"github.com/warmpath/warmpath/internal/proxy"
)

// roleSwitch is the path of SGLang's role switch [SGLang 0.5.23, srt/entrypoints/http_server.py,
// srt/disaggregation/role_switch.py].
const roleSwitch = "/pd_role_switch"

// ErrNotTold is the error of a role switch that the router did not begin, because of the order itself or of what the
// worker does at present.
var ErrNotTold = errors.New("the engine was not told")

// SwitchesRole reports whether w's engine must be told to change its role. The engines of other kinds serve both legs,
// or are started with a role.
func SwitchesRole(w *fleet.Worker) bool { return w.Facts.Engine == fleet.EngineSGLang }

// SwitchRole drains a worker, tells its engine to change its role, and ends the drain. The engine drops its cache. If
// the engine cannot serve any more, the worker stays drained. SwitchRole returns what the engine answered. After the
// engine has changed its role, SwitchRole calls switched, which has the worker probed: a prefill worker stays drained
// until the probe has found where other engines find it.
//
// The engine refuses the switch while it has requests. If it fails after it has given up the old role, it serves no
// requests until it is restarted (safe_to_restore is false). An error that is [ErrNotTold] means that nothing changed.
func (g *Gateway) SwitchRole(ctx context.Context, w *fleet.Worker, role fleet.Role, limit time.Duration, switched func() error) (said string, err error) {
	if role == fleet.RoleBoth {
		return "", fmt.Errorf("%w: SGLang has the roles prefill and decode only", ErrNotTold)
	}
	if other, under := g.ordered.LoadOrStore(w.ID, roleSwitch); under {
		return "", fmt.Errorf("%w: the order %s is under way there; try again after the answer to that order", ErrNotTold, other)
	}
	defer g.ordered.Delete(w.ID)
	before := w.Draining
	g.Fleet.SetDraining(w.ID, true)
	keep := false // the engine may serve nothing any more
	defer func() {
		if !keep {
			g.Fleet.SetDraining(w.ID, before)
		}
	}()
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !g.idle(waiting, w) {
		return "", fmt.Errorf("%w: it still has requests after %v, and gets requests again; give more time: \"drain\": \"30m\"", ErrNotTold, limit)
	}
	telling, cancelTelling := context.WithTimeout(ctx, orderTimeout)
	defer cancelTelling()
	var told reply
	a := proxy.Attempt{Worker: w.URL, Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, Unchecked: true,
		Dialect: api.OpenAIChat, Path: roleSwitch, Body: fmt.Appendf(nil, `{"new_role":%q}`, role), Writer: &told}
	result := g.Client.Forward(telling, &a)
	said = told.text()
	if result.Answer != nil {
		said = string(bytes.TrimSpace(result.Answer.Body[:min(len(result.Answer.Body), maxReply)]))
	}
	var did struct {
		Success       bool   `json:"success"`
		Message       string `json:"message"`
		SafeToRestore bool   `json:"safe_to_restore"`
	}
	understood := json.Unmarshal([]byte(said), &did) == nil && (did.Success || did.Message != "")
	switch {
	case result.Class == proxy.Success && did.Success:
		g.forgetCache(w)
		if now := g.Fleet.Snapshot().ByID(w.ID); now != nil { // before the drain ends; the next probe finds the rest
			facts := now.Facts
			facts.Role = role
			g.Fleet.Put(w.URL, facts)
		}
		if err := switched(); err != nil {
			return said, err
		}
		if err := g.awaitConnector(ctx, w.ID); err != nil {
			keep = true
			return said, fmt.Errorf("it has its new role, and stays drained: %w; then end the drain with PATCH /admin/workers", err)
		}
		return said, nil
	case result.Status == http.StatusNotFound:
		return said, fmt.Errorf("the engine has no %s: SGLang has it since 0.5.23", roleSwitch)
	case result.Status == 0:
		keep = true
		return said, fmt.Errorf("it did not answer, and stays drained: %w; look at its log, then end the drain with PATCH /admin/workers", api.CauseOf(result.Err))
	case understood && !did.SafeToRestore && did.Message != "":
		// SGLang also says so if nothing was changed, such as without --enable-pd-role-switch. A probe tells the two
		// apart.
		keep = g.Client.Forward(telling, &proxy.Attempt{Worker: w.URL, Method: http.MethodGet, Path: "/health", Header: http.Header{}, Unchecked: true,
			Dialect: api.OpenAIChat, Writer: new(reply)}).Class != proxy.Success
	}
	if keep {
		return said, fmt.Errorf("it gave up its old role and failed, and stays drained: %s; restart it", did.Message)
	}
	return said, fmt.Errorf("it refused: %s", cmp.Or(did.Message, said))
}

// probed is how long a worker that has changed its role is waited for, until a probe has found what its connector
// needs. Probes are some seconds apart.
const probed = 20 * time.Second

// awaitConnector waits until the router knows where other engines find a worker that computes prompts. A decode worker
// reports no such address.
func (g *Gateway) awaitConnector(ctx context.Context, id fleet.WorkerID) error {
	ctx, cancel := context.WithTimeout(ctx, probed)
	defer cancel()
	for {
		snap := g.Fleet.Snapshot()
		w := snap.ByID(id)
		if w == nil || w.Facts.Role == fleet.RoleDecode {
			return nil
		}
		c, known := connector.Find(w.Facts.Transfer.Connector)
		if !known {
			return nil
		}
		err := c.Ready(&connector.Pair{Prefill: endAt(w, w.Facts.FirstRank)})
		if err == nil {
			return nil
		}
		select {
		case <-snap.Superseded():
		case <-ctx.Done():
			return err
		}
	}
}
