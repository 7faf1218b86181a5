package migrate

import (
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// noAddresses is the note for files of systems that find the workers by themselves.
const noAddresses = "workers: the old file does not name the engines' addresses; list them: workers: [{url: http://HOST:PORT}]"

// stack reads the dynamic configuration of vLLM's production stack (src/vllm_router/dynamic_config.py).
func (c *converter) stack(root *config.Node) {
	for _, p := range root.Pairs {
		c.stackKey(p.Key, strings.ReplaceAll(p.Key, "_", "-"), p)
	}
	if root.Get("static_backends") == nil {
		c.notes = append(c.notes, noAddresses)
	}
}

// stackKey reads a key of the production stack that has the meaning of the flag name.
func (c *converter) stackKey(key, name string, p config.Pair) {
	switch name {
	case "static-backends", "session-key":
		if t := text(p.Value); t != "" {
			c.flag(key, name, t)
		}
	case "static-models", "service-discovery", "k8s-service-discovery-type", "enable-router":
		// The router asks the workers for their models; the note about addresses says the rest.
	case "routing-logic":
		switch logic := text(p.Value); logic {
		case "disaggregated_prefill", "disaggregated_prefill_orchestrated":
			c.note(key, p.Value, "the router sends a whole request to one worker: name workers that do prefill and decode")
		case "":
		default:
			c.flag(key, name, logic)
		}
	case "container-port":
		c.flag(key, "port", texts(p.Value)...)
	case "extra-args":
		c.arguments(key, texts(p.Value))
	default:
		c.note(key, unlessSecret(p), "")
	}
}

// helmRouter are the keys of routerSpec that describe the router; the others describe its deployment.
var helmRouter = map[string]string{
	"enableRouter": "enable-router", "serviceDiscovery": "service-discovery", "k8sServiceDiscoveryType": "k8s-service-discovery-type",
	"staticBackends": "static-backends", "staticModels": "static-models", "routingLogic": "routing-logic", "sessionKey": "session-key",
	"extraArgs": "extra-args", "containerPort": "container-port",
}

// helmAdvice says what to do about keys of routerSpec without a counterpart.
var helmAdvice = map[string]string{
	"rootPath": "strip the path in a proxy in front of the router", "otel": "set telemetry.traces (docs/observe.md)",
	"vllmApiKey": "write the engines' key into the file: workers: [{url: …, api_key: …}]", "lmcacheControllerPort": "policy: {type: lmcache_aware, controller_url: …}, if events do not do",
	"engineScrapeInterval": "reports.interval", "requestStatsWindow": "",
}

// helm reads the router's part of the chart's values (vllm-project/production-stack helm/values.yaml).
func (c *converter) helm(root *config.Node) {
	spec := root.Get("routerSpec")
	for _, p := range spec.Pairs {
		key := "routerSpec." + p.Key
		if name, ok := helmRouter[p.Key]; ok {
			c.stackKey(key, name, p)
		} else if advice, ok := helmAdvice[p.Key]; ok {
			c.note(key, unlessSecret(p), advice)
		} else {
			c.note(key, nil, "describes the deployment, not the router")
		}
	}
	for _, p := range root.Pairs {
		if p.Key != "routerSpec" {
			c.note(p.Key, nil, "describes other parts of the deployment")
		}
	}
	if text(spec.Get("staticBackends")) == "" {
		c.notes = append(c.notes, noAddresses)
	}
}

// arguments reads the command line of a router. Flags that are not known become notes.
func (c *converter) arguments(key string, args []string) {
	forms := map[string]config.FlagForm{"policy": config.OneValue, "log-level": config.OneValue}
	for _, f := range config.ForeignFlags() {
		forms[f.Name] = f.Form
	}
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		form, known := forms[name]
		if !strings.HasPrefix(args[i], "--") || !known {
			if strings.HasPrefix(args[i], "--") {
				c.note(key+" --"+name, nil, "")
			}
			continue
		}
		var values []string
		switch {
		case joined:
			values = []string{value}
		case form == config.NoValue:
			values = []string{"true"}
		default:
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && (form == config.ManyValues || len(values) == 0) {
				i++
				values = append(values, args[i])
			}
		}
		if len(values) > 0 {
			c.flag(key+" --"+name, name, values...)
		}
	}
}

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

// dynamo reads a DynamoGraphDeployment: the frontend's variables and arguments.
func (c *converter) dynamo(root *config.Node) {
	spec := root.Get("spec")
	c.variables("spec.envs", spec.Get("envs"))
	for _, s := range spec.Get("services").Keys() { // v1alpha1
		if text(s.Value.Get("componentType")) != "frontend" && !strings.EqualFold(s.Key, "frontend") {
			c.note("spec.services."+s.Key, nil, "start the engines with their own HTTP servers and KV events (docs/engines.md)")
			continue
		}
		key := "spec.services." + s.Key
		c.variables(key, s.Value.Get("envs"))
		main := s.Value.Get("extraPodSpec", "mainContainer")
		c.variables(key, main.Get("env"))
		c.arguments(key, append(texts(main.Get("command")), texts(main.Get("args"))...))
	}
	for _, s := range spec.Get("components").Entries() { // v1beta1
		key := "spec.components " + text(s.Get("name"))
		if text(s.Get("type")) != "frontend" {
			c.note(key, nil, "start the engines with their own HTTP servers and KV events (docs/engines.md)")
			continue
		}
		for _, container := range s.Get("podTemplate", "spec", "containers").Entries() {
			c.variables(key, container.Get("env"))
			c.arguments(key, append(texts(container.Get("command")), texts(container.Get("args"))...))
		}
	}
	c.notes = append(c.notes, noAddresses)
}

// variables reads environment variables: DYN_ROUTER_X has the meaning of --router-x, and DYN_X of --x.
func (c *converter) variables(key string, envs *config.Node) {
	known := map[string]config.FlagForm{}
	for _, f := range config.ForeignFlags() {
		known[f.Name] = f.Form
	}
	for _, e := range envs.Entries() {
		variable, value := text(e.Get("name")), text(e.Get("value"))
		rest, ok := strings.CutPrefix(variable, "DYN_")
		if !ok || value == "" {
			continue
		}
		name := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		if name == "router-use-kv-events" {
			name = "router-kv-events"
		}
		form, is := known[name]
		if off := "no-" + name; is && form == config.NoValue && (value == "false" || value == "0") {
			if _, has := known[off]; !has {
				continue
			}
			name = off
		}
		if !is {
			c.note(key+" "+variable, unlessSecret(config.Pair{Key: variable, Value: e.Get("value")}), "")
			continue
		}
		c.flag(key+" "+variable, name, value)
	}
}
