package snapshot

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Config has the settings of a warm start, in the section "index" of the configuration file.
type Config struct {
	// Peers are the admin addresses of other routers with the same workers, as http://HOST:PORT. A router that starts
	// asks one of them, in random order, for its index, and continues with the engines' events. It does not believe
	// what an engine does not confirm (docs/warm-start.md). The peers must have the same admin key. By default there
	// are none.
	Peers []string `yaml:"peers"`
	// PeerTimeout bounds how long a start waits for the index of peers, all of them together. Requests are served
	// meanwhile. A million blocks take about a second over a local network. After it the router reads the engines'
	// histories. It bounds later questions to peers, too: those about engines without a replay endpoint, and those
	// after a loss of messages.
	PeerTimeout time.Duration `yaml:"peer_timeout"`
	// SnapshotFile is a file to which the router writes its index when it stops, and regularly. It reads the file when
	// it starts, for holders of which no peer has a checkpoint. The file counts only for engines with a replay
	// endpoint: only a replay shows that the engine is still the same. By default there is none.
	SnapshotFile string `yaml:"snapshot_file"`
	// SnapshotInterval is the time between two writings of the file. A router that is killed leaves a file of this age,
	// and the engines' replays must still have the messages since then. Engines keep 10,000 (buffer_steps): 8 minutes
	// with 20 messages a second. 0 writes only when the router stops.
	SnapshotInterval time.Duration `yaml:"snapshot_interval"`
}

// mostPeerTimeout is the greatest PeerTimeout: a billion blocks take 10 to 20 minutes.
const mostPeerTimeout = 20 * time.Minute

// DefaultConfig has no peers and no file.
func DefaultConfig() Config {
	return Config{Peers: []string{}, PeerTimeout: 5 * time.Second, SnapshotInterval: time.Minute}
}

// Validate returns all problems of c. Each begins with the name of its field.
func (c Config) Validate() error {
	var problems []error
	for i, p := range c.Peers {
		u, err := url.Parse(p)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Path != "" && u.Path != "/" {
			problems = append(problems, fmt.Errorf("peers[%d]: %.200q is not the admin address of a router, such as http://router-2:9090", i, p))
		}
	}
	if c.PeerTimeout <= 0 || c.PeerTimeout > mostPeerTimeout {
		problems = append(problems, fmt.Errorf("peer_timeout: %v is outside 0s..%v, 0 excluded", c.PeerTimeout, mostPeerTimeout))
	}
	if c.SnapshotInterval < 0 {
		problems = append(problems, fmt.Errorf("snapshot_interval: %v is negative", c.SnapshotInterval))
	}
	if c.SnapshotFile != "" {
		info, err := os.Stat(filepath.Dir(c.SnapshotFile))
		if err != nil || !info.IsDir() {
			problems = append(problems, errors.New("snapshot_file: its folder does not exist: make the folder first"))
		}
		if info, err := os.Stat(c.SnapshotFile); err == nil && !info.Mode().IsRegular() {
			problems = append(problems, errors.New("snapshot_file: it must be a file"))
		}
	}
	return errors.Join(problems...)
}
