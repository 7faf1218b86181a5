package connector

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// maxRanks is the greatest rank that an answer may name.
const maxRanks = 4096

// Ask returns the URL at which the bootstrap server of a worker says the engine ids of its ranks. ok is false if the
// connector has no such URL, or if host or port are not known. The ids change when the engine restarts.
func (c *Connector) Ask(e *End) (url string, ok bool) {
	at := address(e)
	if c.file.Ask == "" || at == "" {
		return "", false
	}
	return "http://" + at + c.file.Ask, true
}

// Asked reads the answer of the bootstrap server that Ask named: the engine ids of a worker's ranks, from the rank
// first on, and the sizes of its groups. An id is "" if the rank has not registered yet. The form is that of vLLM's
// MooncakeBootstrapServer (distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py, EngineEntry).
func Asked(answer []byte, first int) (engineIDs []string, tensorParallel, pipelineParallel int, err error) {
	if err := check(answer); err != nil {
		return nil, 0, 0, err
	}
	var entries map[string]struct {
		EngineID string `json:"engine_id"`
		// By the number of the rank in the tensor group, then in the pipeline group.
		Addresses map[string]map[string]string `json:"worker_addr"`
	}
	if err := json.Unmarshal(answer, &entries); err != nil {
		return nil, 0, 0, errors.New(`the bootstrap server's answer is not of the form {"RANK":{"engine_id":…,"worker_addr":…}}`)
	}
	for key, entry := range entries {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || rank >= maxRanks {
			return nil, 0, 0, fmt.Errorf("the bootstrap server names a rank %.40q", key)
		}
		if rank < first {
			continue
		}
		for len(engineIDs) <= rank-first {
			engineIDs = append(engineIDs, "")
		}
		engineIDs[rank-first] = entry.EngineID
		tensorParallel = max(tensorParallel, len(entry.Addresses))
		for _, stages := range entry.Addresses {
			pipelineParallel = max(pipelineParallel, len(stages))
		}
	}
	if len(engineIDs) == 0 {
		return nil, 0, 0, errors.New("no rank of the worker has registered at its bootstrap server yet")
	}
	return engineIDs, tensorParallel, pipelineParallel, nil
}
