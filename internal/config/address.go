package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// validateAddresses checks each address of the listeners and the workers. It also checks that no two addresses
// conflict.
func (c *Config) validateAddresses(found *problems) {
	front, err := listenAddress(c.Listen)
	found.when("listen", err)
	back, listens := address{}, []listener{{"listen", front}}
	// If the address has no valid form, admin.Config.Validate reports it.
	if _, _, err := net.SplitHostPort(c.Admin.Listen); err == nil {
		back, err = listenAddress(c.Admin.Listen)
		found.when("admin.listen", err)
		listens = append(listens, listener{"admin.listen", back})
	}
	for _, l := range []listener{{"index_service.listen", address{text: c.IndexService.Listen}}, {"index_service.grpc_listen", address{text: c.IndexService.GRPCListen}}} {
		if _, _, err := net.SplitHostPort(l.text); err == nil { // if not, indexer.Config.Validate reports it
			at, err := listenAddress(l.text)
			found.when(l.path, err)
			listens = append(listens, listener{l.path, at})
		}
	}
	if c.Events.Listen != "" {
		events, err := eventsAddress(c.Events.Listen)
		found.when("events.listen", err)
		listens = append(listens, listener{"events.listen", events})
	}
	for i, l := range listens {
		for _, other := range listens[:i] {
			if l.meets(other.address) {
				err := fmt.Errorf("%s is taken by %s, %s: give each its own port", l.text, other.path, other.text)
				*found = append(*found, &problem{path: l.path, err: err, other: other.path})
			}
		}
	}
	c.validateWorkers(found, listens)
}

// listener is an address on which the router listens, with the path of its key in the file.
type listener struct {
	path string
	address
}

// address is a TCP address to listen on. The zero value is no address.
type address struct {
	text, host string
	port       int // 0 means any free port
}

// meets reports whether a and b conflict, so that one process cannot listen on both.
func (a address) meets(b address) bool {
	if a.port == 0 || a.port != b.port {
		return false
	}
	return a.host == b.host || wildcard(a.host) || wildcard(b.host)
}

// is reports whether a connection to host and port reaches a. host and port are in their canonical form.
func (a address) is(host string, port int) bool {
	ip, err := netip.ParseAddr(host)
	return a.port == port && port != 0 && (a.host == host || wildcard(a.host) && err == nil && ip.IsLoopback())
}

func wildcard(host string) bool {
	return host == "" || zmtp.Endpoint{Host: host}.Wildcard()
}

// listenAddress parses host:port. Port 0 means any free port.
func listenAddress(text string) (address, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return address{}, fmt.Errorf("%q is not host:port", text)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return address{}, fmt.Errorf("%q: the port is not within 0..65535", text)
	}
	if host != "" && !zmtp.HostName(host) {
		return address{}, fmt.Errorf("%q: the part before the port is neither an address nor a host name", text)
	}
	return address{text, zmtp.CanonicalHost(host), int(n)}, nil
}

// eventsAddress parses a ZMQ endpoint to bind. An ipc endpoint has no TCP address: for it the result is the zero value.
func eventsAddress(text string) (address, error) {
	e, err := zmtp.ParseEndpoint(text)
	switch {
	case err != nil:
		return address{}, err
	case e.Path == "":
		e = e.Canonical()
		return address{text, e.Host, e.Port}, nil
	}
	// "@" at the beginning means Linux's abstract namespace, which needs no folder.
	if dir := filepath.Dir(e.Path); e.Path[0] != '@' && !isDir(dir) {
		return address{}, fmt.Errorf("%q: there is no folder %s", text, dir)
	}
	return address{}, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// validateWorkers checks each worker. No two workers may have the same URL or the same endpoint of events or replay,
// and no worker may be the router itself.
func (c *Config) validateWorkers(found *problems, listens []listener) {
	urls, endpoints := map[string]int{}, map[string]string{}
	itself := func(at, host string, port int, text string) {
		for _, l := range listens {
			if l.is(host, port) {
				found.add(at, fmt.Errorf("%s is this router's own %s, %s", text, l.path, l.text))
			}
		}
	}
	claim := func(at, endpoint, text string) {
		if endpoint == "" {
			return
		}
		if e, err := zmtp.ParseEndpoint(endpoint); err == nil && e.Path == "" {
			itself(at, e.Host, e.Port, text)
		}
		if first, twice := endpoints[endpoint]; twice {
			found.add(at, fmt.Errorf("%s is also the endpoint of %s: each worker and each purpose needs its own", text, first))
			return
		}
		endpoints[endpoint] = at
	}
	for i, w := range c.Workers {
		at := fmt.Sprintf("workers[%d]", i)
		address := discovery.Target{URL: w.URL}.Canonical() // "" if the URL is not valid
		if first, twice := urls[address]; twice {
			err := fmt.Errorf("%s is listed twice, first as workers[%d]", w.URL, first)
			*found = append(*found, &problem{path: at, err: err, certain: true})
		} else if address != "" {
			urls[address] = i
		}
		if err := w.Validate(); err != nil {
			for _, e := range parts(err) {
				found.add(at, e)
			}
			continue
		}
		if u, err := url.Parse(address); err == nil {
			port, _ := strconv.Atoi(u.Port()) // a canonical URL always has a port
			itself(at, u.Hostname(), port, w.URL)
		}
		events, replay := w.Endpoints()
		claim(at+".events", events, w.Events)
		claim(at+".replay", replay, w.Replay)
		if w.Events == discovery.None && replay != "" {
			found.add(at+".replay", errors.New("must be empty: without events there is no replay"))
		}
	}
}

// httpURL returns an error unless text is an http or https URL with a host. A port is optional.
func httpURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%q is not a URL such as https://host", text)
	}
	return discovery.CheckPort(u)
}
