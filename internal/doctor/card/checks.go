package card

// allChecks returns the list, in the order in which it is run: each may rely on those before it.
func allChecks() []check {
	return []check{
		{name: "open", run: (*session).openSession, anyway: true,
			advice: "do what the sentence says; \"rdma-netstack doctor\" without --first-contact " +
				"lists what is missing on this machine"},
		{name: "first send", run: (*session).firstSend,
			advice: "compare the WQE with docs of its fields below, look for mlx5_core lines in " +
				"dmesg, and report it with both"},
		{name: "receive start", run: (*session).receiveStart,
			advice: "on a VF look at the e-switch line below and at \"ip link show\" of the " +
				"physical function (trust, spoof check); else report it"},
		{name: "completion counters", run: (*session).completionCounters,
			advice: "report it: the driver takes either form, and nothing else"},
		{name: "doorbell record", run: (*session).doorbellRecord,
			advice: "report it with the firmware version"},
		{name: "broadcast copy", run: (*session).broadcastCopy,
			advice: "do not run servers on this port: Linux may lose ARP; report it with the " +
				"firmware version"},
		{name: "compression", run: (*session).compression,
			advice: "set dv.Config.Tuning.NoCompression in your program, and report it with the " +
				"firmware version"},
		{name: "time stamps", run: (*session).timeStamps,
			advice: "do not use Packet.Timestamp, and report it with the firmware version"},
		{name: "send error recovery", run: (*session).sendError,
			advice: "look for mlx5_core lines in dmesg and at \"devlink health\", and report it"},
		{name: "e-switch registration", run: (*session).registration,
			advice: "bridge fdb add ADDRESS dev NETDEV self, with the address of the sentence"},
		{name: "cable", run: (*session).watchCable,
			advice: "report it with the kernel's version and the lines of dmesg from that time"},
		{name: "nothing left behind", run: (*session).leftBehind, anyway: true,
			advice: "report it; the kernel destroys what is left when this process ends"},
	}
}
