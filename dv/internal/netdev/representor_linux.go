package netdev

import (
	"os"
	"path/filepath"
	"strings"
)

// IsRepresentor reports whether the netdev called name stands for a function behind an e-switch in
// switchdev mode. Its phys_port_name is "pf0vf3", "pf0sf8" or "c1pf0", that of the uplink "p0", and
// a function itself has none (__devlink_port_phys_port_name_get in linux net/devlink/port.c). root
// is that of /sys.
func IsRepresentor(root, name string) bool {
	b, err := os.ReadFile(filepath.Join("/", root, "sys/class/net", name, "phys_port_name"))
	return err == nil && strings.Contains(string(b), "pf")
}
