package subnet

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestEverywhere(t *testing.T) {
	for p, want := range map[string]bool{
		"0.0.0.0/0": true, "128.0.0.0/1": true, "64.0.0.0/2": false, "10.0.0.0/8": false,
		"::/0": true, "2000::/3": true, "2001::/16": false, "fe80::/64": true, "ff00::/8": true,
	} {
		if got := everywhere(netip.MustParsePrefix(p)); got != want {
			t.Errorf("%s: %t", p, got)
		}
	}
}

// TestInUse finds the loopback address of every machine, and does not when its interface is
// excepted.
func TestInUse(t *testing.T) {
	has := func(uses []Use) bool {
		for _, u := range uses {
			if u.By == "lo has 127.0.0.1/8" && u.Prefix == netip.MustParsePrefix("127.0.0.1/8") {
				return true
			}
		}
		return false
	}
	for except, want := range map[string]bool{"": true, "nosuch0": true, "lo": false} {
		uses, err := InUse(except)
		if err != nil {
			t.Fatal(err)
		}
		if has(uses) != want {
			t.Errorf("except %q: %v", except, uses)
		}
	}
	if _, ok := prefix(nil); ok {
		t.Error("a route without a destination has one")
	}
	if len(routers(netlink.Route{})) != 0 {
		t.Error("a route without a router has one")
	}
}

// TestLock takes the lock again through another descriptor, as another process would, while it is
// held and after its release.
func TestLock(t *testing.T) {
	unlock, err := Lock()
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("taken while it is held: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Errorf("taken when it is free: %v", err)
	}
}
