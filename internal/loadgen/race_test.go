//go:build race

package loadgen

// underRace: the detector slows engines and fits ten- to twentyfold, so that measured times say nothing.
const underRace = true
