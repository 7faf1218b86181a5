package gateway

// RescueTick is rescueTick.
const RescueTick = rescueTick

// Rescues reports whether g could take a request away from a frozen worker now.
func Rescues(g *Gateway) bool { return g.rescues.thousandths.Load() >= token }
