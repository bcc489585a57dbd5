package rig

import "github.com/rdma-netstack/rdma-netstack/dv"

// SliceReport is what the guest's bare slice (guest slice) prints as JSON, one line when it is up
// and one when it ends.
type SliceReport struct {
	Name, Netdev, MAC string
	Rx, Tx            int
	Caps              dv.Caps
	LinkUp            bool

	Echoed     uint64 // frames answered
	Astray     uint64 // frames on another queue than Device.QueueFor says
	Unverified uint64 // frames the NIC did not vouch for
	// frames without a time stamp, or with one that is before that of the frame before it
	Unstamped uint64
	Tagged    uint64 // frames whose VLAN tag the NIC took out
	Groups    uint64 // broadcast and multicast frames received
	Features  []dv.Feature
	Stats     dv.Stats
	Err       string // why the device is over

	Posted, Waited string // what TxQueue.Post and RxQueue.Wait say then
}
