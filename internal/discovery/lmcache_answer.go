package discovery

import (
	"encoding/json"
	"fmt"
)

// lmcacheInstance is one LMCache engine. It has an LMCache worker for each rank of the model. All LMCache workers of an
// instance cache the same chunks.
type lmcacheInstance struct {
	id, ip string
	keys   int64 // number of chunks of the rank that has the most chunks
}

// lmcacheHit says how many tokens of a prompt an instance has.
type lmcacheHit struct {
	instance string
	tokens   int
}

// decodeWorkers reads the answer of GET /controller/workers: one row for each worker. [LMCache 0.5.6,
// worker_info_api.py]
func decodeWorkers(answer []byte) ([]lmcacheInstance, error) {
	var rows struct {
		Workers []struct {
			InstanceID string `json:"instance_id"`
			IP         string `json:"ip"`
			KeyCount   int64  `json:"key_count"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(answer, &rows); err != nil {
		return nil, fmt.Errorf("read the controller's workers: %w", err)
	}
	var all []lmcacheInstance
	at := map[string]int{}
	for _, r := range rows.Workers {
		i, seen := at[r.InstanceID]
		if !seen {
			i = len(all)
			at[r.InstanceID] = i
			all = append(all, lmcacheInstance{id: r.InstanceID, ip: r.IP})
		}
		all[i].keys = max(all[i].keys, r.KeyCount)
	}
	return all, nil
}

// decodeLookup reads the answer of POST /lookup: for each instance, a location and a number of tokens. [LMCache 0.5.6,
// kv_controller.py]
func decodeLookup(answer []byte) ([]lmcacheHit, error) {
	var reply struct {
		Layout map[string][]json.RawMessage `json:"layout_info"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, fmt.Errorf("read the controller's lookup: %w", err)
	}
	var found []lmcacheHit
	for id, pair := range reply.Layout {
		var tokens int
		if len(pair) < 2 || json.Unmarshal(pair[1], &tokens) != nil {
			return nil, fmt.Errorf("read the controller's lookup: instance %.64q has no pair of location and tokens", id)
		}
		if tokens > 0 {
			found = append(found, lmcacheHit{id, tokens})
		}
	}
	return found, nil
}
