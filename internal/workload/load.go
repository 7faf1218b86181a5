package workload

import "errors"

// Load makes the workload that spec describes: FORMAT:FILE (gzip or not) or gen:NAME,key=value,….
func Load(spec string) (*Workload, error) { return nil, errors.New("load " + spec + ": not yet") }
