package fields_test

import (
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/fields"
)

func TestSnake(t *testing.T) {
	for name, want := range map[string]string{
		"TCPFailedDials": "tcp_failed_dials", "RxPackets": "rx_packets", "LSO": "lso",
		"BlueFlames": "blue_flames", "IPSent": "ip_sent", "NICs": "nics",
		"UDPReceiveBufferErr": "udp_receive_buffer_err",
	} {
		if got := fields.Snake(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestOf(t *testing.T) {
	got := fields.Of(struct {
		RxPackets uint64
		Up        bool
		Drops     struct{ TooLong uint64 }
		Name      string
	}{RxPackets: 1 << 63, Up: true, Drops: struct{ TooLong uint64 }{7}})
	want := []fields.Field{{"rx_packets", 1 << 63}, {"up", 1}, {"drops_too_long", 7}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
