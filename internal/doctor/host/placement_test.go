package host_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
)

// TestLocate finds the card of a running server by either name, its processors and those of the
// process; of what is no card it tells the rest.
func TestLocate(t *testing.T) {
	f := card(t, "connectx6dx")
	f.set(`proc/4711/status = Name:	rdma-netstack\nCpus_allowed_list:	8-9,31`)
	root := f.build(t)
	pause := host.Pause{Received: 7, Sent: 3}
	near := []int{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}
	for _, tt := range []struct {
		device, paused string
		want           host.Placement
	}{
		{"mlx5_0", "enp101s0f0np0", host.Placement{Card: "mlx5_0", CardCPUs: near, Pause: pause}},
		{"enp101s0f0np0", "enp101s0f0np0", host.Placement{Card: "mlx5_0", CardCPUs: near,
			Pause: pause}},
		{"eth7", "eth7", host.Placement{Pause: pause}},
	} {
		cfg := config(root, tt.device)
		cfg.Pause = func(netdev string) (host.Pause, error) {
			if netdev != tt.paused {
				return host.Pause{}, errors.New("no such netdev: " + netdev)
			}
			return pause, nil
		}
		got := host.Locate(cfg, 4711)
		if got.Card != tt.want.Card || !slices.Equal(got.CardCPUs, tt.want.CardCPUs) ||
			!slices.Equal(got.CPUs, []int{8, 9, 31}) || got.Pause != tt.want.Pause {
			t.Errorf("%s: %+v, want %+v", tt.device, got, tt.want)
		}
	}
	if got := host.Locate(config(root, "mlx5_0"), 4712); got.Card != "mlx5_0" || got.CPUs != nil {
		t.Errorf("of a process that is gone: %+v", got)
	}
}
