// The PTX interpreter: programs that break and that keep each rule that it enforces. The programs
// are PTX themselves, so no compiler is needed.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulator_device.h"

using namespace brrr::test;

namespace {

// %rd1, %rd2, %rd3 are a, b, c; %r1 the thread, %r2 the block; %rd5 and %rd6 the thread's elements
// of a and c; %rd8 its element of the 256 bytes of shared memory at `tile`, %rd9 the next one's
// modulo 32; %p1 holds for the first 16 threads.
const char* const begin = R"(// a program
.version 9.0
.target sm_90
.address_size 64
.global .align 4 .f32 numbers[4] = {0f3F800000, 0f40000000, 0f40400000, 0f40800000};
.func (.param .b32 twice_result) twice(.param .b32 twice_x)
{
	.reg .f32 %f<3>;
	ld.param.f32 %f1, [twice_x];
	add.rn.f32 %f2, %f1, %f1;
	st.param.f32 [twice_result+0], %f2;
	ret;
}
.visible .entry k(
	.param .align 8 .b8 k_param_0[32]
)
.maxntid 128, 1, 1
{
	.reg .pred %p<8>;
	.reg .b16 %rs<8>;
	.reg .f32 %f<16>;
	.reg .b32 %r<32>;
	.reg .b64 %rd<32>;
	.local .align 8 .b8 depot[16];
	.shared .align 16 .b8 tile[256];
	ld.param.u64 %rd1, [k_param_0];
	ld.param.u64 %rd2, [k_param_0+8];
	ld.param.u64 %rd3, [k_param_0+16];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mul.wide.u32 %rd4, %r1, 4;
	add.s64 %rd5, %rd1, %rd4;
	add.s64 %rd6, %rd3, %rd4;
	mov.u64 %rd7, tile;
	add.s64 %rd8, %rd7, %rd4;
	add.s32 %r3, %r1, 1;
	and.b32 %r3, %r3, 31;
	mul.wide.u32 %rd9, %r3, 4;
	add.s64 %rd9, %rd7, %rd9;
	setp.lt.u32 %p1, %r1, 16;
	cvt.rn.f32.u32 %f1, %r1;
)";

struct Vectors4 {
  const float *a, *b;
  float* c;
  long n;
};

std::vector<float> results;

// The launch's failure, if any. a and c have 65 elements, those of a being 0, 1, 2 ...; b has one,
// which has not been written.
std::string run(const std::string& body, unsigned threads = 32, unsigned blocks = 1,
                const std::string& order = "") {
  Device d("BRRR_EMULATOR_ORDER", order.c_str());
  const std::string text = begin + body + "\nDONE:\n\tret;\n}\n";
  Module* module = nullptr;
  Function* f = nullptr;
  if (const Failure said = driver().load(text.c_str(), text.size() + 1, &module)) return said;
  if (const Failure said = driver().function(module, "k", 0, &f)) return said;
  std::vector<float> a(65);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
  float* const c = d.device(std::vector<float>(65));
  void* b = nullptr;
  GOOD(driver().allocate(&b, sizeof(float)));
  d.allocated.push_back(b);
  const Vectors4 p{d.device(a), static_cast<float*>(b), c, 0};
  const std::string said = words(d.launch(f, blocks, threads, p));
  if (said == "no failure") results = d.host(c, 65);
  GOOD(driver().synchronize(d.stream));
  GOOD(driver().unload(module));
  return said;
}

#define CHECK_GOOD(...) CHECK(run(__VA_ARGS__) == "no failure")
#define CHECK_BROKEN(part, ...)                                \
  do {                                                         \
    const std::string said = run(__VA_ARGS__);                 \
    CHECK_MESSAGE(said.find(part) != std::string::npos, said); \
  } while (0)

}  // namespace

TEST_CASE("emulator ptx: a failure names kernel, block, thread, line and instruction") {
  CHECK_GOOD("st.global.f32 [%rd6], %f1;");
  CHECK(results[31] == 31);
  const std::string said = run("setp.eq.u32 %p2, %r1, 5;\n@%p2 st.global.f32 [%rd6+2], %f1;");
  CAPTURE(said);
  CHECK(
      said.starts_with("kernel k, block (0, 0, 0), thread (5, 0, 0), PTX line 43, "
                       "`@%p2 st.global.f32 [%rd6+2], %f1;`: accesses 4 bytes at "));
  CHECK(said.ends_with("which is not aligned to them"));
  CHECK_BROKEN("no instruction sparkle.f32", "sparkle.f32 %f1, %f1;");
}

TEST_CASE("emulator ptx: accesses lie within memory and are aligned to all of their bytes") {
  CHECK_GOOD("ld.global.v4.f32 {%f2, %f3, %f4, %f5}, [%rd1+16];");
  CHECK_BROKEN("not aligned", "ld.global.v2.f32 {%f2, %f3}, [%rd1+4];");
  CHECK_BROKEN("4 bytes before the end of an allocation of 260 bytes",
               "ld.global.v2.f32 {%f2, %f3}, [%rd1+256];");
  CHECK_BROKEN("where no memory is", "ld.global.f32 %f2, [%rd1+260];");
  CHECK_BROKEN("where no memory is", "mov.u64 %rd10, 64;\nld.global.f32 %f2, [%rd10];");
  CHECK_BROKEN("of shared memory, which has 256 bytes", "st.shared.f32 [%rd7+256], %f1;");
  CHECK_BROKEN("of shared memory, which has", "st.shared.f32 [%rd7+-4], %f1;");
  CHECK_BROKEN("of the parameters, which has 32 bytes",
               "mov.b64 %rd10, k_param_0;\nld.param.u64 %rd11, [%rd10+32];");
  CHECK_BROKEN("of local memory", "mov.u64 %rd10, depot;\nst.local.f32 [%rd10+4096], %f1;");
  CHECK_GOOD(R"(mov.u64 %rd10, depot;
st.local.f32 [%rd10+8], %f1;
cvta.local.u64 %rd11, %rd10;
ld.f32 %f2, [%rd11+8];
st.global.f32 [%rd6], %f2;)");
  CHECK(results[9] == 9);
  CHECK_GOOD("mov.u64 %rd10, numbers;\nld.global.f32 %f2, [%rd10+8];\nst.global.f32 [%rd6], %f2;");
  CHECK(results[9] == 3);
}

TEST_CASE("emulator ptx: static and dynamic shared memory together fit the GPU's blocks") {
  for (const auto& [capability, limit] :
       {std::pair("86", 99u << 10), std::pair("90", 227u << 10)}) {
    Device d("BRRR_EMULATOR_CAPABILITY", capability);
    const std::string text = begin + std::string("ret;\n}\n");
    Module* module = nullptr;
    GOOD(driver().load(text.c_str(), text.size() + 1, &module));
    Function* f = nullptr;
    GOOD(driver().function(module, "k", limit, &f));
    const Vectors4 p{};
    GOOD(d.launch(f, 1, 32, p, limit - 256));  // `tile` has the rest.
    CHECK_FAILS(d.launch(f, 1, 32, p, limit - 128), "static and dynamic");
    GOOD(driver().synchronize(d.stream));
    GOOD(driver().unload(module));
  }
}

TEST_CASE("emulator ptx: shared memory is read after it has been written, with a barrier between") {
  const std::string write = "st.shared.f32 [%rd8], %f1;\n",
                    read = "ld.shared.f32 %f2, [%rd9];\nst.global.f32 [%rd6], %f2;\n",
                    block = "bar.sync 0;\n", warp = "bar.warp.sync -1;\n",
                    shuffle = "shfl.sync.bfly.b32 %r5|%p3, %r1, 1, 31, -1;\n";
  CHECK_BROKEN("that no thread of the block has written", "ld.shared.f32 %f2, [%rd8];");
  CHECK_GOOD(write + block + read);
  CHECK(results[31] == 0);
  CHECK(results[3] == 4);
  CHECK_GOOD(write + warp + read);
  CHECK_BROKEN("what another thread has written: thread 1 at shared memory", write + read);
  CHECK_BROKEN("what another thread has written", write + shuffle + read);
  CHECK_GOOD(write + block + read + block + write);
  CHECK_BROKEN("what another thread has read", write + block + read + write);
  CHECK_BROKEN("other bytes than another thread", "st.shared.f32 [%rd7], %f1;");
  CHECK_GOOD("mov.f32 %f2, 0f00000000;\nst.shared.f32 [%rd7], %f2;");
  // A warp's barrier does not hold for other warps.
  CHECK_BROKEN("what another thread has written: thread 0",
               "@%p1 st.shared.f32 [%rd8], %f1;\n" + warp + "ld.shared.f32 %f2, [%rd7];", 64);
}

TEST_CASE("emulator ptx: blocks do not communicate through global memory") {
  CHECK_GOOD("st.global.f32 [%rd6], %f1;", 32, 2);  // the same values
  CHECK_BROKEN("other bytes than another block", "st.global.u32 [%rd6], %r2;", 32, 2);
  CHECK_GOOD("st.volatile.global.u32 [%rd6], %r2;\nld.volatile.global.u32 %r5, [%rd3];", 32, 2);
  CHECK_BROKEN("what another thread has written",
               "st.volatile.global.u32 [%rd6], %r2;\n"
               "ld.global.u32 %r5, [%rd3];",
               32, 2);
  CHECK_BROKEN("reads what another block writes",
               "setp.eq.u32 %p2, %r2, 0;\n@%p2 st.global.f32 [%rd6], %f1;\n"
               "@!%p2 ld.global.f32 %f2, [%rd6];",
               32, 2);
  CHECK_BROKEN("writes what another block reads",
               "setp.eq.u32 %p2, %r2, 0;\n@!%p2 st.global.f32 [%rd6], %f1;\n"
               "@%p2 ld.global.f32 %f2, [%rd6];",
               32, 2);
  CHECK_BROKEN("what another thread has written",
               "st.global.f32 [%rd6], %f1;\n"
               "ld.global.f32 %f2, [%rd3];");
  CHECK_BROKEN("by ld.global.nc", "ld.global.nc.f32 %f2, [%rd6];\nst.global.f32 [%rd6], %f2;");
  CHECK_BROKEN("by ld.global.nc", "st.global.f32 [%rd6], %f1;\nld.global.nc.f32 %f2, [%rd6];");
  CHECK_GOOD("ld.global.nc.f32 %f2, [%rd5];\nst.global.f32 [%rd6], %f2;");
}

TEST_CASE("emulator ptx: all threads that have not exited reach the same barrier") {
  CHECK_GOOD("@%p1 bra DONE;\nbar.sync 0;", 64);
  CHECK_BROKEN("waits in vain", "@%p1 bra OTHER;\nbar.sync 0;\nbra DONE;\nOTHER:\nbar.sync 0;");
  CHECK_BROKEN("waits in vain",
               "@%p1 bra OTHER;\nbar.sync 0;\nbra DONE;\nOTHER:\nbar.warp.sync -1;");
  CHECK_BROKEN("another barrier than other warps",
               "setp.lt.u32 %p2, %r1, 32;\n@%p2 bra OTHER;\nbar.sync 1;\nbra DONE;\nOTHER:\n"
               "bar.sync 0;",
               64);
  // Lanes that diverge reconverge.
  CHECK_GOOD(
      "@%p1 bra OTHER;\nadd.s32 %r1, %r1, 1;\nbra MEET;\nOTHER:\nadd.s32 %r1, %r1, 2;\n"
      "MEET:\nbar.sync 0;");
}

TEST_CASE("emulator ptx: lanes that a member mask names take part") {
  const std::string store = "\nst.global.u32 [%rd6], %r5;";
  CHECK_GOOD("shfl.sync.down.b32 %r5|%p3, %r1, 1, 31, -1;" + store);
  CHECK_GOOD("@%p1 shfl.sync.bfly.b32 %r5|%p3, %r1, 1, 31, 65535;");
  CHECK_BROKEN("waits in vain", "@%p1 shfl.sync.bfly.b32 %r5|%p3, %r1, 1, 31, -1;\nbar.sync 0;");
  CHECK_BROKEN("has exited", "@%p1 bra DONE;\nshfl.sync.bfly.b32 %r5|%p3, %r1, 1, 31, -1;\nret;");
  CHECK_BROKEN("does not exist", "shfl.sync.bfly.b32 %r5|%p3, %r1, 1, 31, -1;", 48);
  CHECK_BROKEN("is not in its own member mask", "vote.sync.ballot.b32 %r5, %p1, 65535;");
  CHECK_BROKEN("takes the value of lane 16, which does not take part",
               "@%p1 shfl.sync.idx.b32 %r5|%p3, %r1, 16, 31, 65535;");
  CHECK_GOOD("vote.sync.ballot.b32 %r5, %p1, -1;" + store);
  CHECK(std::signbit(results[0]) == false);
  const std::string mma =
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, "
      "{%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f1, %f1, %f1, %f1};";
  CHECK_GOOD(mma);
  CHECK_BROKEN("needs 32 lanes", mma, 16);
  CHECK_BROKEN("has exited", "@%p1 bra DONE;\n" + mma + "\nret;");
}

TEST_CASE("emulator ptx: diverged lanes run in any order, and reconverge to shuffle") {
  const std::string part =
      "@%p1 bra LOW;\nst.volatile.global.f32 [%rd3], %f1;\nbra.uni MET;\n"
      "LOW:\nst.volatile.global.f32 [%rd3], %f1;\nMET:\n";
  const std::string meet =
      "add.rn.f32 %f2, %f1, %f1;\nmov.b32 %r4, %f2;\n"
      "shfl.sync.idx.b32 %r5|%p3, %r4, 31, 31, -1;\nst.global.u32 [%rd6+4], %r5;";
  bool upper = false, lower = false;
  for (int order = 0; order < 20; ++order) {
    CHECK_GOOD(part + meet, 32, 1, std::to_string(order));
    CHECK((results[0] == 31 || results[0] == 15));
    (results[0] == 31 ? upper : lower) = true;
    CHECK(results[1] == 62);
    CHECK(results[32] == 62);
  }
  CHECK(upper);
  CHECK(lower);
}

TEST_CASE("emulator ptx: an asynchronous copy has arrived once it has been waited for") {
  const std::string addresses = "cvt.u32.u64 %r4, %rd8;\nmov.u32 %r6, 4;\n",
                    go = "cp.async.ca.shared.global [%r4], [%rd5], 4, %r6;\n",
                    wait = "cp.async.wait_all;\n",
                    use = "ld.shared.f32 %f2, [%rd8];\nst.global.f32 [%rd6], %f2;\n";
  CHECK_GOOD(addresses + go + wait + use);
  CHECK(results[31] == 31);
  CHECK_BROKEN("ends before its copies", addresses + go);
  const std::string zeros = addresses + "mov.u32 %r6, 0;\n" + go + wait;
  CHECK_GOOD(zeros + use);
  CHECK(results[31] == 0);
  const std::string again = zeros + "bar.sync 0;\nmov.u32 %r6, 4;\n" + go;
  CHECK_GOOD(again + use + wait);
  CHECK(results[31] == 0);
  const std::string next = "ld.shared.f32 %f2, [%rd9];\nst.global.f32 [%rd6], %f2;\n";
  CHECK_GOOD(addresses + go + wait + "bar.sync 0;\n" + next);
  CHECK_BROKEN("another thread has written", addresses + go + wait + next);
  CHECK_BROKEN("another thread", zeros + "bar.sync 0;\n" + next + go + wait);
  CHECK_BROKEN("copies only a part", addresses + "mov.u32 %r6, 3;\n" + go + wait);
  CHECK_BROKEN("not aligned", addresses + "add.s32 %r4, %r4, 2;\n" + go + wait);
  CHECK_BROKEN("of shared memory, which has", addresses + "add.s32 %r4, %r4, 256;\n" + go + wait);
  const std::string outside = "add.s64 %rd5, %rd5, 260;\n";
  CHECK_BROKEN("where no memory is", addresses + outside + go + wait);
  CHECK_BROKEN("where no memory is", outside + zeros);
}

TEST_CASE("emulator ptx: matrices of 16-bit elements") {
  // Eight rows of 16 bytes, two elements per thread; ldmatrix gets rows `row` bytes apart.
  const auto matrices = [](const std::string& how, int row) {
    return "shl.b32 %r4, %r1, 1;\nadd.s32 %r5, %r4, 1;\nshl.b32 %r5, %r5, 16;\n"
           "or.b32 %r4, %r4, %r5;\nst.shared.u32 [%rd8], %r4;\nbar.sync 0;\n"
           "and.b32 %r4, %r1, 7;\nmul.lo.s32 %r4, %r4, " +
           std::to_string(row) +
           ";\ncvt.u32.u64 %r5, %rd7;\nadd.s32 %r4, %r4, %r5;\n"
           "ldmatrix.sync.aligned.m8n8.x4" +
           how +
           ".shared.b16 {%r5, %r6, %r7, %r8}, [%r4];\n"
           "and.b32 %r5, %r8, 65535;\nshr.u32 %r6, %r8, 16;\nshl.b32 %r5, %r5, 8;\n"
           "or.b32 %r5, %r5, %r6;\ncvt.rn.f32.u32 %f2, %r5;\nst.global.f32 [%rd6], %f2;\n";
  };
  CHECK_GOOD(matrices("", 16));
  for (int l = 0; l < 32; ++l) CHECK(results[static_cast<size_t>(l)] == l * 2 * 256 + l * 2 + 1);
  CHECK_GOOD(matrices(".trans", 16));
  for (int l = 0; l < 32; ++l) {
    const int first = l % 4 * 2 * 8 + l / 4;
    CHECK(results[static_cast<size_t>(l)] == first * 256 + first + 8);
  }
  CHECK_BROKEN("16 bytes at", matrices("", 8));
  CHECK_BROKEN("no thread of the block has written", matrices("", 32));
  CHECK_BROKEN("needs 32 lanes", matrices("", 16), 16);
}

TEST_CASE("emulator ptx: predicates, addresses and stored values have been written") {
  CHECK_BROKEN("depends on a predicate that was never written", "@%p5 bra DONE;");
  CHECK_BROKEN("depends on a predicate", "setp.eq.u32 %p2, %r20, 0;\n@%p2 bra DONE;");
  CHECK_BROKEN("takes its address from", "ld.global.f32 %f2, [%rd20];");
  CHECK_BROKEN("stores an undefined value", "add.s32 %r5, %r1, %r20;\nst.global.u32 [%rd6], %r5;");
  CHECK_BROKEN("stores an undefined value", "@%p1 mov.u32 %r5, 1;\nst.global.u32 [%rd6], %r5;");
  CHECK_BROKEN("stores an undefined value",
               "mov.u64 %rd10, depot;\nld.local.u32 %r5, [%rd10];\nst.global.u32 [%rd6], %r5;");
  CHECK_BROKEN("stores an undefined value",
               "ld.global.f32 %f2, [%rd2];\nst.global.f32 [%rd6], %f2;");
  CHECK_BROKEN("depends on a predicate that was never written",
               "ld.global.f32 %f2, [%rd2];\nsetp.lt.f32 %p2, %f2, %f1;\n@%p2 bra DONE;");
  CHECK_GOOD(
      "st.global.f32 [%rd2], 0f3F800000;\nld.global.f32 %f2, [%rd2];\n"
      "st.global.f32 [%rd2], %f2;",
      1);
  CHECK_GOOD("selp.b32 %r5, %r1, %r20, %p1;\n@%p1 st.global.u32 [%rd6], %r5;");
}

TEST_CASE("emulator ptx: a select of constants that ptxas gets wrong is refused") {
  const char* const what = "loses the zero's sign";
  CHECK_BROKEN(what, "selp.f32 %f2, 0f80000000, 0fBF800000, %p1;");
  CHECK_BROKEN(what, "selp.f32 %f2, 0f3F800000, 0f80000000, %p1;");
  CHECK_GOOD("selp.f32 %f2, 0f80000000, 0fBF000000, %p1;\nst.global.f32 [%rd6], %f2;");
  CHECK_GOOD("selp.f32 %f2, 0f00000000, 0fBF800000, %p1;\nst.global.f32 [%rd6], %f2;");
  CHECK_GOOD("selp.b32 %r5, 0x80000000, 0x3F800000, %p1;\nst.global.u32 [%rd6], %r5;");
}

TEST_CASE("emulator ptx: arithmetic follows the ISA") {
  CHECK_BROKEN("divides an integer by zero", "rem.u32 %r5, %r1, %r1;");
  const auto bits = [](const std::string& body) {
    CHECK_GOOD(body + "\nst.global.u32 [%rd6], %r5;");
    uint32_t x = 0;
    std::memcpy(&x, &results[1], 4);
    return x;
  };
  const std::string nan = "mov.f32 %f2, 0fFFC00001;\n";
  CHECK(bits("shl.b32 %r5, %r1, 32;") == 0);
  CHECK(bits(nan + "cvt.rzi.s32.f32 %r5, %f2;") == 0);
  CHECK(bits("mov.f32 %f2, 0f7F800000;\ncvt.rzi.s32.f32 %r5, %f2;") == 0x7fffffff);
  CHECK(bits(nan + "add.rn.f32 %f3, %f2, %f1;\nmov.b32 %r5, %f3;") == 0x7fffffff);
  CHECK(bits(nan + "max.f32 %f3, %f2, %f1;\nmov.b32 %r5, %f3;") == 0x3f800000);
  CHECK(bits("mov.f32 %f2, 0f00000001;\nadd.rn.f32 %f3, %f2, %f2;\nmov.b32 %r5, %f3;") == 2);
  CHECK(bits("cvt.rn.bf16x2.f32 %r5, %f1, 0f40000000;") == 0x3f804000);
  CHECK(bits("cvt.rn.f16x2.f32 %r5, %f1, 0f40000000;") == 0x3c004000);
  CHECK(bits("prmt.b32 %r5, 305419896, 0, 4180;") == 0x56780000);
  CHECK(bits("{\n.param .b32 x;\nst.param.f32 [x+0], %f1;\n.param .b32 y;\ncall.uni (y), twice, "
             "(x);\nld.param.f32 %f2, [y+0];\n}\nmov.b32 %r5, %f2;") == 0x40000000);
}
