package migrate

import (
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// llmdScorers are llm-d's scorers, and the scorers of the policy mix with the same meaning
// (llm-d-router pkg/epp/framework/plugins).
var llmdScorers = map[string]string{
	"prefix-cache-scorer": "match", "precise-prefix-cache-scorer": "match", "queue-scorer": "queue", "kv-cache-utilization-scorer": "kv_cache",
	"load-aware-scorer": "load", "active-request-scorer": "requests", "running-requests-size-scorer": "running",
}

// llmdPickers are llm-d's pickers, and those of the policy mix.
var llmdPickers = map[string]string{"max-score-picker": "max_score", "random-picker": "random", "weighted-random-picker": "weighted_random"}

// llmd reads an EndpointPickerConfig: the scorers of its first profile with their weights become the policy mix.
func (c *converter) llmd(root *config.Node) {
	types := map[string]string{} // a plugin's name → its type
	for _, p := range root.Get("plugins").Entries() {
		name := text(p.Get("name"))
		if name == "" {
			name = text(p.Get("type"))
		}
		types[name] = text(p.Get("type"))
		switch t := text(p.Get("type")); {
		case llmdScorers[t] != "" || llmdPickers[t] != "":
		case strings.HasSuffix(t, "-producer") || t == "single-profile-handler":
			// The router makes token ids, reads events and knows the block size by itself.
		default:
			c.note("plugins "+t, nil, "")
		}
	}
	profiles := root.Get("schedulingProfiles").Entries()
	var scorers []string
	picker := ""
	for i, profile := range profiles {
		if i > 0 {
			c.note("schedulingProfiles "+text(profile.Get("name")), nil, "one policy decides for the whole request")
			continue
		}
		for _, p := range profile.Get("plugins").Entries() {
			name := text(p.Get("pluginRef"))
			kind := types[name]
			if kind == "" {
				kind = name
			}
			weight := text(p.Get("weight"))
			if !plainNumber(weight) {
				weight = "1"
			}
			switch {
			case llmdScorers[kind] != "":
				scorers = append(scorers, "    - {scorer: "+llmdScorers[kind]+", weight: "+weight+"}")
			case llmdPickers[kind] != "":
				picker = llmdPickers[kind]
			default:
				c.note("schedulingProfiles "+name, nil, "")
			}
		}
	}
	if len(scorers) > 0 {
		c.policy = append([]string{"policy:", "  type: mix", "  scorers:"}, scorers...)
		if picker != "" {
			c.policy = append(c.policy, "  picker: "+picker)
		}
	}
	for _, p := range root.Pairs {
		switch p.Key {
		case "apiVersion", "kind", "plugins", "schedulingProfiles":
		default:
			c.note(p.Key, nil, "")
		}
	}
	c.notes = append(c.notes, noAddresses)
}
