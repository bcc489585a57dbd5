package netdev

import (
	"os"
	"path/filepath"
)

// NetvscOf returns the Hyper-V netdev (driver hv_netvsc) that the netdev called name carries the
// data of, "" if it is not such a virtual function. Linux makes the function's netdev a lower
// device of it (netvsc_register_vf in drivers/net/hyperv/netvsc_drv.c). root is that of /sys.
func NetvscOf(root, name string) string {
	class := filepath.Join("/", root, "sys/class/net")
	master, err := os.Readlink(filepath.Join(class, name, "master"))
	if err != nil {
		return ""
	}
	upper := filepath.Base(master)
	driver, err := os.Readlink(filepath.Join(class, upper, "device/driver"))
	if err != nil || filepath.Base(driver) != "hv_netvsc" {
		return ""
	}
	return upper
}
