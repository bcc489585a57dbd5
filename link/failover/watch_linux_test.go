package failover

import (
	"encoding/binary"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUevents reads messages as linux 6.1 sends them (lib/kobject_uevent.c).
func TestUevents(t *testing.T) {
	const device = "/devices/pci0000:00/0000:00:02.0/0000:01:00.0/infiniband/mlx5_0"
	for name, tt := range map[string]struct {
		message string
		want    []Signal
	}{
		"removed": {"remove@" + device + "\x00ACTION=remove\x00DEVPATH=" + device +
			"\x00SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=3127\x00",
			[]Signal{{Gone: true, Name: "mlx5_0"}}},
		"added": {"add@" + device + "\x00ACTION=add\x00DEVPATH=" + device +
			"\x00SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=3128\x00", []Signal{{}}},
		"its node": {"remove@/devices/virtual/infiniband_verbs/uverbs0\x00ACTION=remove\x00" +
			"SUBSYSTEM=infiniband_verbs\x00SEQNUM=3129\x00", nil},
		"a disk":    {"add@/devices/virtual/block/loop0\x00ACTION=add\x00SUBSYSTEM=block\x00", nil},
		"nothing":   {"", nil},
		"no action": {"libudev\x00SUBSYSTEM=infiniband\x00", nil},
	} {
		if got := uevent([]byte(tt.message)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// linkMessage is a message of rtnetlink(7) with an attribute of 5 bytes.
func linkMessage(kind uint16, family byte, index int32) []byte {
	const size = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg + 9
	b := make([]byte, (size+3)&^3)
	ne := binary.NativeEndian
	ne.PutUint32(b, size)
	ne.PutUint16(b[4:], kind)
	b[unix.SizeofNlMsghdr] = family
	ne.PutUint32(b[unix.SizeofNlMsghdr+4:], uint32(index))
	return b
}

func TestLinkMessages(t *testing.T) {
	del, add := linkMessage(unix.RTM_DELLINK, 0, 7), linkMessage(unix.RTM_NEWLINK, 0, 8)
	bridge := linkMessage(unix.RTM_DELLINK, unix.AF_BRIDGE, 7)
	// a docker container or a CNI plugin has taken it: 5 bytes are one attribute and its padding
	moved := append(linkMessage(unix.RTM_DELLINK, 0, 7), 8, 0, unix.IFLA_NEW_NETNSID, 0, 1, 0, 0, 0)
	binary.NativeEndian.PutUint32(moved, uint32(len(moved)))
	copy(moved[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:], []byte{9, 0, unix.IFLA_IFNAME, 0, 'e',
		't', 'h', '0', 0})
	both := append(append([]byte(nil), del...), add...)
	for name, tt := range map[string]struct {
		message []byte
		want    []Signal
	}{
		"gone": {del, []Signal{{Gone: true, Ifindex: 7}}}, "there": {add, []Signal{{Ifindex: 8}}},
		"both":       {both, []Signal{{Gone: true, Ifindex: 7}, {Ifindex: 8}}},
		"moved":      {moved, []Signal{{Moved: true, Ifindex: 7}}},
		"a bridge's": {bridge, nil}, "nothing": {nil, nil},
		"cut": {del[:len(del)-8], nil}, "short": {make([]byte, 40), nil},
	} {
		if got := linkMessages(tt.message); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(linkMessage(unix.RTM_DELLINK, 0, 7))
	f.Add(append(linkMessage(unix.RTM_DELLINK, 0, 7), 8, 0, unix.IFLA_NEW_NETNSID, 0, 1, 0, 0, 0))
	f.Add([]byte("remove@/devices/a/infiniband/mlx5_0\x00SUBSYSTEM=infiniband\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		uevent(b)
		linkMessages(b)
	})
}

// TestWatch opens and closes a watcher, twice.
func TestWatch(t *testing.T) {
	w, err := Watch()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}
