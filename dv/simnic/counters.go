package simnic

// Traffic counts packets as they would be on a wire, and their bytes without FCS.
type Traffic struct{ RxPackets, RxBytes, TxPackets, TxBytes uint64 }

// Counters is a snapshot of what a NIC has counted. Packets of an unsegmented
// frame are counted each.
type Counters struct {
	Slice  Traffic // user queues: completed into receive queues; sent by WQEs
	Netdev Traffic // netdev side: given to it; sent by it
	Wire   Traffic // came in from the wire; left to it
}
