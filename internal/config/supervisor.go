package config

import "os"

// EnvNotifySocket is the environment variable in which a supervisor names the socket for sd_notify(3).
const EnvNotifySocket = "NOTIFY_SOCKET"

// NotifySocket returns the address of the Unix datagram socket at which a supervisor, such as systemd, wants to hear
// the state of this process; "" if there is none.
func NotifySocket() string { return os.Getenv(EnvNotifySocket) }
