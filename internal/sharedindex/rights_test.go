package sharedindex

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// documentedUsers returns the commands of docs/shared-index.md that make users, by the user's name. The document must
// also name the rights that come in addition.
func documentedUsers(t *testing.T, more ...string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/shared-index.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range more {
		if !strings.Contains(string(text), "`"+right+"`") {
			t.Errorf("the document does not name %s", right)
		}
	}
	users := map[string][]string{}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		if words := strings.Fields(line); strings.HasPrefix(line, "ACL SETUSER ") {
			users[words[2]] = words
		}
	}
	return users
}

func TestTheDocumentedRightsAreEnough(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) { useWithRights(t, s, false) })
}

func TestTheDocumentedRightsAreEnoughInACluster(t *testing.T) {
	for _, kind := range testenv.ValkeyKinds {
		t.Run(kind, func(t *testing.T) {
			useWithRights(t, clusterOfOne(t, kind), true, "+cluster|slots", "+cluster|shards", "+asking")
		})
	}
}

// useWithRights uses a server with the rights of the documentation and with more. The server notes each command that it
// denies to a user, also in a script.
func useWithRights(t *testing.T, s *testenv.ValkeyServer, cluster bool, more ...string) {
	users := documentedUsers(t, more...)
	for _, name := range []string{"warmpath-router", "warmpath-index"} {
		user := append(users[name], more...)
		if answer := command(t, s, user...); strings.Contains(answer, "'+client|setinfo'") { // Redis 7.0
			user = slices.DeleteFunc(user, func(word string) bool { return word == "+client|setinfo" })
		}
		if answer := command(t, s, user...); !strings.HasPrefix(answer, "+OK") {
			t.Fatalf("%q: %s", user, answer)
		}
	}
	command(t, s, "ACL", "LOG", "RESET")
	t.Run("use", func(t *testing.T) { useAs(t, s, cluster) })
	if log := command(t, s, "ACL", "LOG"); log != "*0\r\n" {
		t.Errorf("the server denied commands:\n%s", log)
	}
}

// useAs lets a writer and a router do what they do at a server, each as the user of the documentation.
func useAs(t *testing.T, s *testenv.ValkeyServer, cluster bool) {
	as := func(user string) func(c *Config) {
		return func(c *Config) {
			c.URL, c.Username, c.Password, c.Cluster = "valkey://"+s.Address, user, "PASSWORD", cluster
		}
	}
	w := start(t, as("warmpath-index"), func(w *world) { as("warmpath-router")(&w.reader.config) })
	hashes := w.store(0, 1)
	w.exact(0, 1)
	w.index.Remove(0, block.TierGPU, 0, hashes[20:])
	testenv.Until(t, "the removal is written", func() bool { return w.blocks(0, 1) == 20 })

	l := &learners{T: t, hasher: w.hasher, config: w.reader.config}
	l.config.Prefix += "learned:" // nobody follows these workers' events
	l.start(0, time.Hour)
	l.send(0, 1, 2)
	testenv.Until(t, "the router knows the prompt", func() bool { return l.blocks(0, 2) == [3]int{0, 40, 0} })
	worker := l.fleets[0].Snapshot().Workers()[1]
	l.fleets[0].Remove(worker.ID)
	l.fleets[0].Put(worker.URL, worker.Facts) // another process
	testenv.Until(t, "the router has the placements of the other process forgotten", func() bool {
		return strings.Contains(command(t, s, "INFO", "commandstats"), "cmdstat_hdel:")
	})
}
