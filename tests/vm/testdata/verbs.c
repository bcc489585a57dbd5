// Verbs that programs use and the driver does not, through rdma-core: one per call,
// named by the first argument. Prints "ok" and details, or what failed.
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char *buf;
enum { SIZE = 1 << 20, FRAMES = 64, FRAME = 2048 };

static void need(int ok, const char *what)
{
	if (ok)
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static void check(int err, const char *what)
{
	errno = err;
	need(!err, what);
}

static struct ibv_cq *completions(int n)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, n, NULL, NULL, 0);
	need(cq != NULL, "create_cq");
	return cq;
}

static struct ibv_qp *pair(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
				     .cap = {FRAMES, FRAMES, 1, 1, 0}};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	need(qp != NULL, "create_qp");
	return qp;
}

static void to(struct ibv_qp *qp, enum ibv_qp_state s, int mask)
{
	struct ibv_qp_attr a = {.qp_state = s, .port_num = 1};
	check(ibv_modify_qp(qp, &a, IBV_QP_STATE | mask), "modify_qp");
}

// raw is a queue pair for frames, with all its buffers posted.
static struct ibv_qp *raw(struct ibv_cq *cq)
{
	struct ibv_qp *qp = pair(IBV_QPT_RAW_PACKET, cq);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	need(mr != NULL, "reg_mr");
	to(qp, IBV_QPS_INIT, IBV_QP_PORT);
	to(qp, IBV_QPS_RTR, 0);
	for (int i = 0; i < FRAMES; i++) {
		struct ibv_sge sge = {(uintptr_t)buf + i * FRAME, FRAME, mr->lkey};
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
		check(ibv_post_recv(qp, &wr, &bad), "post_recv");
	}
	return qp;
}

static void rereg(void)
{
	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	need(mr && other, "reg_mr");
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0),
	      "rereg_mr, access");
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), "rereg_mr, PD");
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buf + 4096, 8192, 0),
	      "rereg_mr, pages");
	check(ibv_dereg_mr(mr), "dereg_mr");
}

static void resize(void)
{
	struct ibv_cq *cq = completions(16);
	check(ibv_resize_cq(cq, 500), "resize_cq");
	need(cq->cqe >= 500, "entries");
	struct ibv_modify_cq_attr a = {IBV_CQ_ATTR_MODERATE, {16, 8}};
	check(ibv_modify_cq(cq, &a), "modify_cq");
	check(ibv_destroy_cq(cq), "destroy_cq");
}

// pairs asks for the state of queue pairs. Without RoCE the kernel lets none but raw packet
// ones leave the reset state.
static void pairs(void)
{
	static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
	for (int i = 0; i < 3; i++) {
		struct ibv_qp *qp = pair(types[i], completions(64));
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr a = {};
		check(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), "query_qp");
		need(a.qp_state == IBV_QPS_RESET, "state");
		check(ibv_destroy_qp(qp), "destroy_qp");
	}
}

static void srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {64, 1, 0}};
	struct ibv_srq *q = ibv_create_srq(pd, &init);
	struct ibv_srq_attr a = {.srq_limit = 5};
	need(q != NULL, "create_srq");
	check(ibv_modify_srq(q, &a, IBV_SRQ_LIMIT), "modify_srq");
	memset(&a, 0, sizeof a);
	check(ibv_query_srq(q, &a), "query_srq");
	need(a.srq_limit == 5, "limit");
	check(ibv_destroy_srq(q), "destroy_srq");
}

// count counts frames for 02:aa:00:00:00:55 until there were 64.
static void count(void)
{
	struct ibv_qp *qp = raw(completions(64));
	struct ibv_counters_init_attr init = {};
	struct ibv_counters *c = ibv_create_counters(ctx, &init);
	struct ibv_counter_attach_attr at = {IBV_COUNTER_PACKETS, 0, 0};
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_counter_action count;
	} __attribute__((packed, aligned(8))) f = {
		{.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof f, .num_of_specs = 2, .port = 1},
		{.type = IBV_FLOW_SPEC_ETH, .size = sizeof f.eth,
		 .val.dst_mac = {2, 0xaa, 0, 0, 0, 0x55}},
		{.type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof f.count, .counters = c},
	};
	memset(f.eth.mask.dst_mac, 0xff, 6);
	need(c != NULL, "create_counters");
	check(ibv_attach_counters_point_flow(c, &at, NULL), "attach_counters");
	struct ibv_flow *flow = ibv_create_flow(qp, (void *)&f);
	need(flow != NULL, "create_flow");
	puts("counting");
	fflush(stdout);
	for (uint64_t n = 0; n < 64; usleep(10000))
		check(ibv_read_counters(c, &n, 1, 0),
		      "read_counters");
	check(ibv_destroy_flow(flow), "destroy_flow");
	check(ibv_destroy_counters(c), "destroy_counters");
}

// sniff prints the first 40 frames that a sniffer sees, as hex of their headers.
static void sniff(void)
{
	struct ibv_cq *cq = completions(FRAMES);
	struct ibv_flow_attr f = {.type = IBV_FLOW_ATTR_SNIFFER, .size = sizeof f, .port = 1};
	struct ibv_flow *flow = ibv_create_flow(raw(cq), &f);
	struct ibv_wc wc;
	need(flow != NULL, "create_flow");
	puts("sniffing");
	fflush(stdout);
	for (int n = 0; n < 40; n++) {
		while (!ibv_poll_cq(cq, 1, &wc))
			usleep(1000);
		check(wc.status, "completion");
		for (int i = 0; i < 34; i++)
			printf("%02x", (unsigned char)buf[wc.wr_id * FRAME + i]);
		puts("");
		fflush(stdout);
	}
	check(ibv_destroy_flow(flow), "destroy_flow");
}

// merge has two contexts take the same UDP port without a tag: each gets all 16 datagrams.
static void merge(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_ipv4 ip;
		struct ibv_flow_spec_tcp_udp udp;
	} __attribute__((packed, aligned(8))) f = {
		{.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof f, .num_of_specs = 2, .port = 1},
		{.type = IBV_FLOW_SPEC_IPV4, .size = sizeof f.ip,
		 .val.dst_ip = htobe32(0x0a4d0002), .mask.dst_ip = 0xffffffff},
		{.type = IBV_FLOW_SPEC_UDP, .size = sizeof f.udp,
		 .val.dst_port = htobe16(5000), .mask.dst_port = 0xffff},
	};
	struct ibv_cq *cq[2];
	int got[2] = {};
	for (int i = 0; i < 2; i++) {
		if (i == 1) {
			ctx = ibv_open_device(ibv_get_device_list(NULL)[0]);
			need(ctx != NULL, "open again");
			pd = ibv_alloc_pd(ctx);
			need(pd && !posix_memalign((void **)&buf, 4096, SIZE), "memory");
		}
		cq[i] = completions(FRAMES);
		need(ibv_create_flow(raw(cq[i]), (void *)&f) != NULL, "create_flow");
	}
	puts("merged");
	fflush(stdout);
	for (struct ibv_wc wc; got[0] < 16 || got[1] < 16; usleep(1000))
		for (int i = 0; i < 2; i++)
			got[i] += ibv_poll_cq(cq[i], 1, &wc);
	need(got[0] == 16 && got[1] == 16, "frames");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {{"rereg", rereg}, {"resize", resize}, {"pairs", pairs},
		   {"srq", srq}, {"count", count}, {"sniff", sniff},
		   {"merge", merge}};
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(argc == 2 && list && list[0], "device");
	ctx = ibv_open_device(list[0]);
	need(ctx != NULL, "open");
	pd = ibv_alloc_pd(ctx);
	need(pd && !posix_memalign((void **)&buf, 4096, SIZE), "memory");
	memset(buf, 0, SIZE);
	for (int i = 0; i < 7; i++)
		if (!strcmp(all[i].name, argv[1])) {
			all[i].run();
			puts("ok");
			return 0;
		}
	return 2;
}
