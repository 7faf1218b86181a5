package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// reconnectWait is the time between two attempts to connect. One view is to be back a second after NATS is.
	reconnectWait = 150 * time.Millisecond
	// mostReconnectWait is the same while the server refuses the login: only an operator can change that.
	mostReconnectWait = 5 * time.Second
	// pingInterval is how often the connection is checked, and deadPings is after how many pings without an answer it
	// counts as dead. A connection through a cut cable is given up after a second and a half.
	pingInterval = 500 * time.Millisecond
	deadPings    = 2
	// writeTimeout bounds how long a packet may wait for a connection that takes nothing.
	writeTimeout = time.Second
	// unreadMessages and unreadBytes bound the messages of a subscription that wait to be applied. With the usual packets
	// of 1 KB this is a second of 500 busy routers.
	unreadMessages = 1024
	unreadBytes    = 16 << 20
)

// natsLink is the connection over NATS.
type natsLink struct {
	cfg  Config
	id   uint64
	log  *slog.Logger
	conn atomic.Pointer[nats.Conn]     // nil before the first attempt to connect
	node atomic.Pointer[embedded]      // nil without an embedded server
	last atomic.Pointer[errorWithTime] // of the connection
	// refused is why NATS does not pass on all messages of the present connection; nil: it does, as far as is known.
	refused atomic.Pointer[errorWithTime]

	lines lines
}

// errorWithTime is an error of NATS, for operators.
type errorWithTime struct {
	text string
	at   time.Time
}

func newNATS(cfg Config, id uint64, log *slog.Logger) *natsLink {
	return &natsLink{cfg: cfg, id: id, log: log}
}

// mode names the kind of connection.
func (c *Config) mode() string {
	switch {
	case c.Embedded:
		return "embedded"
	case c.NATS != "":
		return "nats"
	}
	return "off"
}

// subject returns the subject of packets to one router, or to all (0).
func (l *natsLink) subject(to uint64) string {
	if to == 0 {
		return l.cfg.Group + ".sync.all"
	}
	return l.cfg.Group + ".sync.to." + strconv.FormatUint(to, 16)
}

func (l *natsLink) connected() bool {
	conn, node := l.conn.Load(), l.node.Load()
	return conn != nil && conn.IsConnected() && (node == nil || node.peers() > 0)
}

func (l *natsLink) publish(to uint64, packet []byte) error {
	conn := l.conn.Load()
	if conn == nil {
		return nats.ErrConnectionClosed
	}
	err := conn.Publish(l.subject(to), packet)
	if errors.Is(err, nats.ErrMaxPayload) {
		l.happened(fmt.Errorf("a message of %d bytes: %w", len(packet), err))
	}
	return err
}

// checkPayload notes if the server of a new connection does not take the longest packets.
func (l *natsLink) checkPayload(conn *nats.Conn) {
	if most := conn.MaxPayload(); most > 0 && most < maxPacket {
		l.happened(fmt.Errorf("the server's max_payload is %d: %w", most, nats.ErrMaxPayload))
	}
}

// local returns this machine's address on the way to the NATS server, or to another router's embedded server. It is not
// valid without a connection.
func (l *natsLink) local() netip.Addr {
	if node := l.node.Load(); node != nil {
		return localAddress(node.remote())
	}
	conn := l.conn.Load()
	if conn == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(conn.LocalAddr())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().WithZone("")
}

// run connects, and keeps the connection until ctx ends.
func (l *natsLink) run(ctx context.Context, s *Sync) error {
	options, err := l.options(s)
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	options = append(options, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	url := l.cfg.NATS
	if l.cfg.Embedded {
		node, err := startEmbedded(&l.cfg, l.id, l.log, l.served)
		if err != nil {
			return err
		}
		defer node.stop()
		l.node.Store(node)
		options = append(options, nats.InProcessServer(node.server), node.login())
		url = ""
	}
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return errors.New("connect to NATS: " + l.cfg.withoutSecrets(err.Error()))
	}
	l.conn.Store(conn)
	defer func() {
		if conn.IsConnected() {
			_ = conn.FlushTimeout(writeTimeout) // the goodbye; nothing is lost without it
		}
		conn.Close()
		<-closed
	}()
	for _, to := range []uint64{0, l.id} {
		// The client's goroutine applies the packet: each hand-over to another goroutine may wake a processor.
		sub, err := conn.Subscribe(l.subject(to), func(m *nats.Msg) { s.take(m.Data, time.Now()) })
		if err == nil {
			err = sub.SetPendingLimits(unreadMessages, unreadBytes)
		}
		if err != nil {
			return fmt.Errorf("subscribe at NATS: %w", err)
		}
	}
	wake(s.changes)
	if node := l.node.Load(); node != nil {
		node.watch(ctx, s)
		return nil
	}
	<-ctx.Done()
	return nil
}

// options returns the options of the client of NATS.
func (l *natsLink) options(s *Sync) ([]nats.Option, error) {
	changed := func(conn *nats.Conn) {
		l.checkPayload(conn)
		wake(s.changes)
	}
	options := []nats.Option{
		nats.Name("warmpath " + s.parts.Name), nats.NoEcho(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(l.delay()), nats.Timeout(writeTimeout),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(deadPings), nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(), nats.IgnoreAuthErrorAbort(),
		// The client keeps each address that a server ever told, tries all of them before the next attempt at a server of
		// sync.nats, and shows each the password. A server that is no NATS could tell of any number.
		nats.IgnoreDiscoveredServers(),
		// What waits while there is no connection would be old afterwards.
		nats.ReconnectBufSize(-1),
		nats.ConnectHandler(changed), nats.ReconnectHandler(changed),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			l.note(err)
			l.refused.Store(nil)
			wake(s.changes)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.note(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) {
				// The digests of the next packets say what was lost.
				s.drop(dropSlow, 1)
				return
			}
			l.happened(err)
		}),
	}
	switch {
	case l.cfg.Embedded: // the embedded server's own
	case l.cfg.User != "":
		options = append(options, nats.UserInfo(l.cfg.User, l.cfg.Password))
	case l.cfg.Token != "":
		options = append(options, nats.Token(l.cfg.Token))
	case l.cfg.CredentialsFile != "":
		options = append(options, nats.UserCredentials(l.cfg.CredentialsFile))
	}
	if l.cfg.Embedded {
		return options, nil // the client is in the same process
	}
	options = append(options, nats.SetCustomDialer(&guardedDialer{net.Dialer{Timeout: writeTimeout}}))
	files, err := l.cfg.TLS.Client()
	if err != nil {
		return nil, fmt.Errorf("read the files of sync.tls: %w", err)
	}
	if files.RootCAs != nil || len(files.Certificates) > 0 || files.ServerName != "" {
		files.MinVersion = tls.VersionTLS12
		options = append(options, nats.Secure(files))
	}
	return options, nil
}

// delay returns the function that says how long the client waits for its next attempt to connect. It is called by one
// goroutine. Each refused login doubles the time.
func (l *natsLink) delay() func(int) time.Duration {
	wait := reconnectWait
	return func(int) time.Duration {
		if conn := l.conn.Load(); conn != nil && refusedLogin(conn.LastError()) {
			wait = min(2*wait, mostReconnectWait)
		} else {
			wait = reconnectWait
		}
		return wait + rand.N(wait/3)
	}
}

// refusedLogin reports whether err says that a server refuses the login.
func refusedLogin(err error) bool {
	for _, refused := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refused) {
			return true
		}
	}
	return false
}

// note keeps the last error for operators.
func (l *natsLink) note(err error) {
	if err != nil {
		l.last.Store(l.timed(err))
	}
}

// timed returns err as operators may see it.
func (l *natsLink) timed(err error) *errorWithTime {
	return &errorWithTime{l.cfg.withoutSecrets(err.Error()), time.Now()}
}
