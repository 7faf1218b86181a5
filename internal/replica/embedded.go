package replica

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// startTimeout bounds the start of an embedded server. It opens a listener and starts some goroutines.
	startTimeout = 10 * time.Second
	// routeInterval is the time between two looks at the missing routes.
	routeInterval = 200 * time.Millisecond
	// allInterval is the time between two looks if a look finds that all servers answer, and that there is nothing to
	// do: a missing route leads to this router itself, or to a server that refuses it. If a server is lost, the next look
	// is at once.
	allInterval = 5 * time.Second
	// stoodInterval is how long the routes are the same before the server may be hurried again when they change. It is
	// longer than the time between two attempts of the server to have a route that is refused.
	stoodInterval = 2 * time.Second
	// maxWaiting bounds what waits at the embedded server for one slow client or server, in bytes. It then closes the
	// connection, and the routers ask each other for what was lost.
	maxWaiting = 8 << 20
	// mostHurried is how often the server is made to connect to a server that is there. If that did not help, the other
	// server refuses the route, and the server's own attempts are enough: one each second.
	mostHurried = 2
	// implicitRetries is how often, once a second, the server connects again to a server that is not in the routes. Ten
	// minutes is longer than most restarts.
	implicitRetries = 600
	// maxClientSubscriptions bounds the subscriptions of one client. A router has two.
	maxClientSubscriptions = 1024
	// manySubscriptions is a number of subscriptions at the server that routers never have: 256 of them have 512. See
	// warnSubscriptions.
	manySubscriptions = 1 << 14
)

// embedded is a NATS server in this process, which is a part of a cluster.
type embedded struct {
	server  *server.Server
	options *server.Options
	log     *slog.Logger
	// unreached is why the first of the routes is not reached; nil: all are.
	unreached atomic.Pointer[errorWithTime]
	hurried   []int // how often the server was made to connect, by route, since nothing was there
}

// startEmbedded starts a server. The caller calls stop. served is called with each line of the server's log.
func startEmbedded(cfg *Config, id uint64, log *slog.Logger, served func(line string)) (*embedded, error) {
	options, err := cfg.server(id)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(options.Clone())
	if err != nil {
		return nil, fmt.Errorf("make the embedded NATS server: %w", err)
	}
	own := &serverLog{log: log, served: served, blank: cfg.withoutSecrets}
	s.SetLoggerV2(own, log.Enabled(context.Background(), slog.LevelDebug), false, false)
	s.Start()
	e := &embedded{server: s, options: options, log: log, hurried: make([]int, len(options.Routes))}
	for began := time.Now(); !s.ReadyForConnections(startTimeout/100) || s.ClusterAddr() == nil; {
		if why := own.fatal.Load(); why != nil {
			e.stop()
			return nil, fmt.Errorf("start the embedded NATS server: %s", cfg.explainStart(*why))
		}
		if time.Since(began) > startTimeout {
			e.stop()
			return nil, fmt.Errorf("start the embedded NATS server at sync.listen %s: it is not ready after %v", cfg.Listen, startTimeout)
		}
	}
	log.Info("the embedded NATS server listens for other routers", "address", s.ClusterAddr().String(), "routes", len(options.Routes))
	return e, nil
}

// explainStart returns the embedded server's reason why it did not start, with the setting that is to be changed.
func (c *Config) explainStart(why string) string {
	setting, address, flag := "sync.listen", c.Listen, " (--sync-listen)"
	if strings.HasPrefix(why, "Error listening on port:") { // the other listener has a "router port"
		setting, address, flag = "sync.client_listen", c.ClientListen, ""
	}
	text := fmt.Sprintf("listen at %s %s: %s", setting, address, why)
	if strings.Contains(why, syscall.EADDRINUSE.Error()) {
		text += "; is another router running there? Choose another address with " + setting + flag
	}
	return text
}

// stop ends the server, and waits until it has ended.
func (e *embedded) stop() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// server returns the options of the embedded server.
func (c *Config) server(id uint64) (*server.Options, error) {
	host, port, err := hostPort(c.Listen)
	if err != nil {
		return nil, err
	}
	o := &server.Options{
		ServerName: "warmpath-" + strconv.FormatUint(id, 16), NoSigs: true, NoLog: true, NoSystemAccount: true,
		// A server without a listener for clients never opens its listener for routes. So without client_listen it listens
		// on a loopback address, for nobody: the password is random, and only this process knows it.
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		MaxSubs: maxClientSubscriptions, MaxPending: maxWaiting, WriteDeadline: 2 * time.Second, PingInterval: pingInterval, MaxPingsOut: deadPings,
		Users: []*server.User{{Username: "warmpath", Password: rand.Text()}},
		Cluster: server.ClusterOpts{
			Name: "warmpath-" + c.Group, Host: host, Port: port, Username: c.User, Password: c.Password,
			NoAdvertise: true, ConnectRetries: implicitRetries, PoolSize: -1, Compression: server.CompressionOpts{Mode: server.CompressionOff},
			PingInterval: pingInterval, MaxPingsOut: deadPings,
		},
	}
	if c.ClientListen != "" {
		if o.Host, o.Port, err = hostPort(c.ClientListen); err != nil {
			return nil, err
		}
		if o.Users = nil; c.User != "" {
			o.Users = []*server.User{{Username: c.User, Password: c.Password}}
		}
	}
	for _, text := range c.Routes {
		u, err := url.Parse(text)
		if err != nil {
			return nil, errors.New("sync.routes: a route is not a URL")
		}
		if u.User == nil && c.User != "" {
			u.User = url.UserPassword(c.User, c.Password)
		}
		o.Routes = append(o.Routes, u)
	}
	sortRoutes(o.Routes)
	files, err := c.TLS.Client()
	if err != nil {
		return nil, fmt.Errorf("read the files of sync.tls: %w", err)
	}
	if len(files.Certificates) > 0 {
		files.MinVersion = tls.VersionTLS12
		if files.RootCAs != nil {
			files.ClientCAs, files.ClientAuth = files.RootCAs, tls.RequireAndVerifyClientCert
		}
		o.Cluster.TLSConfig, o.Cluster.TLSTimeout = files, 2
		o.TLSConfig, o.TLS = files.Clone(), true
	}
	return o, nil
}

func hostPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%s is not host:port", address)
	}
	if port, err = strconv.Atoi(text); err != nil || port < 0 || port > 1<<16-1 {
		return "", 0, fmt.Errorf("%s has no port number", address)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}

// login returns how this process logs in at the server. A user of a list keeps its connection when the server reads its
// options again; a single user of the options loses it.
func (e *embedded) login() nats.Option {
	if len(e.options.Users) == 0 {
		return nats.UserInfo("", "")
	}
	return nats.UserInfo(e.options.Users[0].Username, e.options.Users[0].Password)
}

// peers returns the number of other servers to which there is a route.
func (e *embedded) peers() int { return e.server.NumRemotes() }

// remote returns the address of another router's server, as IP:PORT; "" if there is no route.
func (e *embedded) remote() string {
	now, err := e.server.Routez(&server.RoutezOptions{})
	if err != nil || len(now.Routes) == 0 {
		return ""
	}
	return net.JoinHostPort(now.Routes[0].IP, strconv.Itoa(now.Routes[0].Port))
}

// watch connects missing routes soon, and wakes the receiver when routes come and go, until ctx ends. By itself the
// server connects once a second, which is too long after the network is whole again.
func (e *embedded) watch(ctx context.Context, s *Sync) {
	tick := time.NewTicker(routeInterval)
	defer tick.Stop()
	changed := time.Now()
	known, next := e.peers(), changed
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		e.warnSubscriptions(&s.lines, s.manySubscriptions)
		if now := e.peers(); now != known {
			e.log.Debug("the number of other routers' NATS servers changed", "connected", now, "before", known)
			if time.Since(changed) > stoodInterval {
				clear(e.hurried)
			}
			changed = time.Now()
			known, next = now, changed
			wake(s.changes)
		}
		// The number of servers says nothing about the routes: a router that hears others may have lost the one that its
		// routes name.
		if !time.Now().Before(next) && e.connectMissing(ctx) {
			next = time.Now().Add(allInterval)
		}
	}
}

// warnSubscriptions logs that another router's server has very many subscriptions, which take this process's memory.
// nats-server bounds the subscriptions of a client and of a leaf node, but not those of a route (route.go makes each
// route with msubs -1, and applyAccountLimits leaves routes out), and offers no way to close a route. So only a
// password or certificates keep others away from the listener for routes, and an operator has to know.
func (e *embedded) warnSubscriptions(lines *lines, many int) {
	total := e.server.NumSubscriptions()
	if int(total) < many {
		return
	}
	now, err := e.server.Routez(&server.RoutezOptions{})
	if err != nil || len(now.Routes) == 0 || !lines.due(once("subscriptions"), time.Now()) {
		return
	}
	most := slices.MaxFunc(now.Routes, func(a, b *server.RouteInfo) int { return cmp.Compare(a.NumSubs, b.NumSubs) })
	e.log.Warn("the NATS servers of other routers have very many subscriptions, which take memory here", "subscriptions", total,
		"address", net.JoinHostPort(most.IP, strconv.Itoa(most.Port)), "of_it", most.NumSubs,
		"advice", "is it no router? Keep it away from sync.listen with a firewall, and change sync.password_file or the files of sync.tls at all routers")
}

// sortRoutes puts routes into the order of nats-server. To compare options at a reload, nats-server 2.15 sorts the
// routes that it uses meanwhile without a lock (server/reload.go, imposeOrder). Sorting what is sorted writes nothing.
func sortRoutes(routes []*url.URL) {
	slices.SortFunc(routes, func(a, b *url.URL) int { return cmp.Compare(a.String(), b.String()) })
}

// connectMissing makes the server connect to the servers of routes that can be reached and to which it has no route. It
// reports whether there was nothing to do and all servers can be reached. This router's own address may be among them,
// and servers that refuse the route.
func (e *embedded) connectMissing(ctx context.Context) (all bool) {
	remotes := map[string]bool{e.server.ID(): true}
	if now, err := e.server.Routez(&server.RoutezOptions{}); err == nil {
		for _, r := range now.Routes {
			remotes[r.RemoteID] = true
		}
	}
	missing := false
	all = true
	for i, id := range e.serversAt(ctx) {
		if id == "" {
			e.hurried[i], all = 0, false
			continue
		}
		// A server that refuses a route may have it for a moment.
		if remotes[id] || e.hurried[i] >= mostHurried {
			continue
		}
		e.hurried[i]++
		route := e.options.Routes[i]
		// The server takes the changed URL for another route, and connects at once. The path means nothing.
		again := *route
		if again.Path = "/"; route.Path == "/" {
			again.Path = ""
		}
		e.options.Routes[i], missing = &again, true
	}
	if !missing {
		return all
	}
	sortRoutes(e.options.Routes)
	if err := e.server.ReloadOptions(e.options.Clone()); err != nil {
		e.log.Debug("the embedded NATS server connects later", "error", withoutUser(err.Error()))
	}
	return false
}

// serversAt returns the id of the NATS server at each route, or "" for none. It asks all at once, so that servers that
// do not answer delay no other one.
func (e *embedded) serversAt(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, routeInterval)
	defer cancel()
	ids, errs := make([]string, len(e.options.Routes)), make([]error, len(e.options.Routes))
	secure := e.options.Cluster.TLSConfig
	var wg sync.WaitGroup // waited for below; routeInterval bounds the wait
	for i, route := range e.options.Routes {
		wg.Go(func() { ids[i], errs[i] = serverAt(ctx, route.Host, secure) })
	}
	wg.Wait()
	e.unreached.Store(nil)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		e.unreached.Store(&errorWithTime{fmt.Sprintf("%s: %v", e.options.Routes[i].Host, errs[i]), time.Now()})
	}
	return ids
}

// serverAt returns the id of the NATS server at an address. A server tells it to who connects, with TLS after the
// handshake. secure is for TLS; nil: none.
func serverAt(ctx context.Context, address string, secure *tls.Config) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	if secure != nil {
		files := secure.Clone()
		if files.ServerName == "" {
			files.ServerName, _, _ = net.SplitHostPort(address)
		}
		conn = tls.Client(conn, files)
	}
	line, err := bufio.NewReaderSize(conn, 32<<10).ReadSlice('\n')
	if secure == nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return "", errors.New("the server says nothing: it asks for TLS, or no router listens there")
	}
	if err != nil {
		return "", err
	}
	var info struct {
		ServerID string `json:"server_id"`
	}
	text, ok := strings.CutPrefix(string(line), "INFO ")
	if !ok {
		return "", errors.New("it is no NATS server")
	}
	err = json.Unmarshal([]byte(text), &info)
	return info.ServerID, err
}

// serverLog writes the lines of the embedded server into the router's log. They are for debugging: what an operator has
// to know, natsLink.served says.
type serverLog struct {
	log    *slog.Logger
	served func(line string)
	blank  func(line string) string // Config.withoutSecrets
	fatal  atomic.Pointer[string]
}

func (l *serverLog) line(format string, v ...any) {
	line := l.blank(fmt.Sprintf(format, v...))
	l.log.Debug("embedded NATS server", "line", line)
	l.served(line)
}

// Fatalf keeps the error: the server calls it when it cannot listen.
func (l *serverLog) Fatalf(format string, v ...any) {
	text := l.blank(fmt.Sprintf(format, v...))
	l.fatal.Store(&text)
	l.line(format, v...)
}

// Noticef, Warnf, Errorf, Debugf and Tracef write a line.
func (l *serverLog) Noticef(format string, v ...any) { l.line(format, v...) }

// Warnf writes a line.
func (l *serverLog) Warnf(format string, v ...any) { l.line(format, v...) }

// Errorf writes a line.
func (l *serverLog) Errorf(format string, v ...any) { l.line(format, v...) }

// Debugf writes a line.
func (l *serverLog) Debugf(format string, v ...any) { l.line(format, v...) }

// Tracef writes a line.
func (l *serverLog) Tracef(format string, v ...any) { l.line(format, v...) }
