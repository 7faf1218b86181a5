package discovery

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
)

// None as a Target's Events or Replay says that the worker has no such endpoint, whatever it tells itself.
const None = "none"

// Target is a worker to find, with what the operator knows better than the worker.
type Target struct {
	URL    string `yaml:"url"`               // base URL, http or https, without /v1
	Events string `yaml:"events,omitempty"`  // ZMQ endpoint of rank 0's events, the host "*" meaning the worker's; rank r is at port + r. "" asks the worker; None: it has none
	Replay string `yaml:"replay,omitempty"`  // the same for the replay socket
	Topic  string `yaml:"topic,omitempty"`   // prefix to subscribe to; "" asks the worker
	Model  string `yaml:"model,omitempty"`   // the base model's name; "" asks the worker
	APIKey string `yaml:"api_key,omitempty"` // sent as a bearer token with every probe; "" sends none

	Labels map[string]string `yaml:"labels,omitempty"` // what policies may ask of it: node and zone for the locality filter
}

// ParseTarget reads URL[,events=ENDPOINT][,replay=ENDPOINT][,topic=TOPIC][,model=NAME][,label.NAME=VALUE …].
func ParseTarget(s string) (Target, error) {
	base, rest, more := strings.Cut(s, ",")
	t := Target{URL: base}
	for more {
		var option string
		option, rest, more = strings.Cut(rest, ",")
		name, value, ok := strings.Cut(option, "=")
		if !ok || value == "" {
			return t, fmt.Errorf("parse worker %q: %q is not NAME=VALUE", s, option)
		}
		switch name {
		case "events":
			t.Events = value
		case "replay":
			t.Replay = value
		case "topic":
			t.Topic = value
		case "model":
			t.Model = value
		default:
			label, ok := strings.CutPrefix(name, "label.")
			if !ok || label == "" {
				return t, fmt.Errorf("parse worker %q: option %q is none of events, replay, topic, model, label.NAME", s, name)
			}
			if t.Labels == nil {
				t.Labels = map[string]string{}
			}
			t.Labels[label] = value
		}
	}
	t, err := t.normalize()
	if err != nil {
		return t, fmt.Errorf("parse worker %q: %w", s, err)
	}
	return t, nil
}

// Equal reports whether both say the same of the same worker.
func (t Target) Equal(o Target) bool {
	return t.URL == o.URL && t.Events == o.Events && t.Replay == o.Replay && t.Topic == o.Topic && t.Model == o.Model && t.APIKey == o.APIKey &&
		maps.Equal(t.Labels, o.Labels)
}

// Validate reports all that is wrong with the target.
func (t Target) Validate() error {
	_, err := t.normalize()
	return err
}

// normalize returns the target with its URL in the form that the fleet knows it by.
func (t Target) normalize() (Target, error) {
	var errs []error
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("read URL: %w", err))
	case u.Scheme != "http" && u.Scheme != "https":
		errs = append(errs, fmt.Errorf("URL %q does not begin with http:// or https://", t.URL))
	case u.Host == "" || u.Hostname() == "":
		errs = append(errs, fmt.Errorf("URL %q names no host", t.URL))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, fmt.Errorf("URL %q must be scheme, host, port and path only", u.Redacted()))
	default:
		// Clients are configured with the /v1 base; here it would make /v1/v1/models.
		u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
		t.URL = u.String()
	}
	for _, e := range []struct{ name, endpoint string }{{"events", t.Events}, {"replay", t.Replay}} {
		if e.endpoint == "" || e.endpoint == None {
			continue
		}
		if _, err := parseEndpoint(e.endpoint); err != nil {
			errs = append(errs, fmt.Errorf("%s endpoint: %w", e.name, err))
		}
	}
	return t, errors.Join(errs...)
}

// host returns the worker's host name or address, without brackets.
func (t Target) host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
