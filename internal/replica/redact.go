package replica

import (
	"net/url"
	"regexp"

	"github.com/warmpath/warmpath/internal/api"
)

// userInfo matches the user and the password of a URL.
var userInfo = regexp.MustCompile(`://[^\s"@/]+@`)

// withoutUser returns text without the users and the passwords of the URLs in it.
func withoutUser(text string) string { return userInfo.ReplaceAllString(text, "://"+api.Redacted+"@") }

// withoutSecrets returns a text of NATS without the secrets of c: a server may repeat what a client has sent to it, and
// the text may quote a URL.
func (c *Config) withoutSecrets(text string) string {
	return withoutUser(api.WithoutSecrets(text, c.secrets()...))
}

// secrets returns what nobody may read in a log. A user is a common word, so it counts only as a client of NATS sends
// it.
func (c *Config) secrets() []string {
	all := []string{c.Password, c.Token, c.Key}
	users := []string{c.User}
	for _, one := range append(c.Servers(), c.Routes...) {
		u, err := url.Parse(one)
		if err != nil || u.User == nil {
			continue
		}
		if password, with := u.User.Password(); with {
			all, users = append(all, password), append(users, u.User.Username())
		} else {
			all = append(all, u.User.Username()) // a token
		}
	}
	for _, user := range users {
		if user != "" {
			all = append(all, `"user":"`+user+`"`)
		}
	}
	return all
}
