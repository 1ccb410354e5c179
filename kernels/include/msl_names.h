// Names that Apple's <metal_stdlib> has in `metal` and the kernels do not use: a kernel that takes one for
// something else is ambiguous under `using namespace metal`, here as there. From the MSL specification 3.2.
// `vec` and `matrix` are left out, as the stand-in's vectors are clang's.
#pragma once

namespace metal {
// Types.
#define MSL_TYPE(NAME) struct NAME;
MSL_TYPE(level) MSL_TYPE(bias) MSL_TYPE(gradient2d) MSL_TYPE(gradient3d) MSL_TYPE(gradientcube)
MSL_TYPE(min_lod_clamp) MSL_TYPE(sampler) MSL_TYPE(array) MSL_TYPE(array_ref) MSL_TYPE(array_ref_traits)
MSL_TYPE(texture1d) MSL_TYPE(texture1d_array) MSL_TYPE(texture2d) MSL_TYPE(texture2d_array)
MSL_TYPE(texture2d_ms) MSL_TYPE(texture2d_ms_array) MSL_TYPE(texture3d) MSL_TYPE(texturecube)
MSL_TYPE(texturecube_array) MSL_TYPE(texture_buffer) MSL_TYPE(depth2d) MSL_TYPE(depth2d_array)
MSL_TYPE(depth2d_ms) MSL_TYPE(depth2d_ms_array) MSL_TYPE(depthcube) MSL_TYPE(depthcube_array)
MSL_TYPE(sparse_color) MSL_TYPE(imageblock) MSL_TYPE(patch_control_point) MSL_TYPE(mesh)
MSL_TYPE(mesh_grid_properties) MSL_TYPE(visible_function_table) MSL_TYPE(command_buffer)
MSL_TYPE(render_command) MSL_TYPE(compute_command) MSL_TYPE(render_pipeline_state)
MSL_TYPE(compute_pipeline_state) MSL_TYPE(depth_stencil_state) MSL_TYPE(uniform) MSL_TYPE(interpolant)
MSL_TYPE(simd_vote) MSL_TYPE(quad_vote) MSL_TYPE(simdgroup_event) MSL_TYPE(integral_constant)
MSL_TYPE(is_same) MSL_TYPE(is_floating_point) MSL_TYPE(is_integral) MSL_TYPE(is_convertible)
MSL_TYPE(enable_if) MSL_TYPE(conditional) MSL_TYPE(remove_cv) MSL_TYPE(remove_const)
MSL_TYPE(remove_reference) MSL_TYPE(make_signed) MSL_TYPE(make_unsigned) MSL_TYPE(numeric_limits)
MSL_TYPE(pair) MSL_TYPE(tuple) MSL_TYPE(numeric) MSL_TYPE(coord) MSL_TYPE(address) MSL_TYPE(filter)
MSL_TYPE(mag_filter) MSL_TYPE(min_filter) MSL_TYPE(mip_filter) MSL_TYPE(compare_func) MSL_TYPE(access)
MSL_TYPE(component) MSL_TYPE(memory_scope) MSL_TYPE(thread_scope) MSL_TYPE(rounding)
MSL_TYPE(atomic) MSL_TYPE(atomic_int) MSL_TYPE(atomic_bool) MSL_TYPE(atomic_float) MSL_TYPE(atomic_ulong)
#undef MSL_TYPE

// Functions. Nothing else has their parameter, so that overloads of the kernels' own stay what they are.
struct NoCall;
#define MSL_FUNCTION(NAME) void NAME(NoCall*);
MSL_FUNCTION(absdiff) MSL_FUNCTION(acos) MSL_FUNCTION(acosh) MSL_FUNCTION(addsat) MSL_FUNCTION(all)
MSL_FUNCTION(any) MSL_FUNCTION(asin) MSL_FUNCTION(asinh) MSL_FUNCTION(atan) MSL_FUNCTION(atan2)
MSL_FUNCTION(atanh) MSL_FUNCTION(ceil) MSL_FUNCTION(clamp) MSL_FUNCTION(clz) MSL_FUNCTION(copysign)
MSL_FUNCTION(cos) MSL_FUNCTION(cosh) MSL_FUNCTION(cospi) MSL_FUNCTION(cross) MSL_FUNCTION(ctz)
MSL_FUNCTION(determinant) MSL_FUNCTION(distance) MSL_FUNCTION(distance_squared) MSL_FUNCTION(divide)
MSL_FUNCTION(dot) MSL_FUNCTION(exp10) MSL_FUNCTION(extract_bits) MSL_FUNCTION(fabs) MSL_FUNCTION(faceforward)
MSL_FUNCTION(fdim) MSL_FUNCTION(floor) MSL_FUNCTION(fmax) MSL_FUNCTION(fmax3) MSL_FUNCTION(fmedian3)
MSL_FUNCTION(fmin) MSL_FUNCTION(fmin3) MSL_FUNCTION(fmod) MSL_FUNCTION(fract) MSL_FUNCTION(frexp)
MSL_FUNCTION(hadd) MSL_FUNCTION(ilogb) MSL_FUNCTION(insert_bits) MSL_FUNCTION(isfinite)
MSL_FUNCTION(isinf) MSL_FUNCTION(isnan) MSL_FUNCTION(isnormal) MSL_FUNCTION(ldexp) MSL_FUNCTION(length)
MSL_FUNCTION(length_squared) MSL_FUNCTION(log) MSL_FUNCTION(log10) MSL_FUNCTION(mad24) MSL_FUNCTION(madhi)
MSL_FUNCTION(madsat) MSL_FUNCTION(max3) MSL_FUNCTION(median3) MSL_FUNCTION(min3) MSL_FUNCTION(mix)
MSL_FUNCTION(modf) MSL_FUNCTION(mul24) MSL_FUNCTION(mulhi) MSL_FUNCTION(nextafter) MSL_FUNCTION(normalize)
MSL_FUNCTION(popcount) MSL_FUNCTION(pow) MSL_FUNCTION(powr) MSL_FUNCTION(reflect) MSL_FUNCTION(refract)
MSL_FUNCTION(reverse_bits) MSL_FUNCTION(rhadd) MSL_FUNCTION(rint) MSL_FUNCTION(rotate) MSL_FUNCTION(saturate)
MSL_FUNCTION(select) MSL_FUNCTION(sign) MSL_FUNCTION(signbit) MSL_FUNCTION(sin) MSL_FUNCTION(sincos)
MSL_FUNCTION(sinh) MSL_FUNCTION(sinpi) MSL_FUNCTION(smoothstep) MSL_FUNCTION(step) MSL_FUNCTION(subsat)
MSL_FUNCTION(tan) MSL_FUNCTION(tanpi) MSL_FUNCTION(transpose) MSL_FUNCTION(trunc)
MSL_FUNCTION(pack_float_to_snorm4x8) MSL_FUNCTION(unpack_snorm4x8_to_float)
MSL_FUNCTION(simd_active_threads_mask) MSL_FUNCTION(simd_all) MSL_FUNCTION(simd_and) MSL_FUNCTION(simd_any)
MSL_FUNCTION(simd_ballot) MSL_FUNCTION(simd_broadcast_first) MSL_FUNCTION(simd_is_first)
MSL_FUNCTION(simd_is_helper_thread) MSL_FUNCTION(simd_min) MSL_FUNCTION(simd_or)
MSL_FUNCTION(simd_prefix_exclusive_sum) MSL_FUNCTION(simd_prefix_inclusive_sum) MSL_FUNCTION(simd_product)
MSL_FUNCTION(simd_shuffle_and_fill_down) MSL_FUNCTION(simd_shuffle_and_fill_up)
MSL_FUNCTION(simd_shuffle_down) MSL_FUNCTION(simd_shuffle_rotate_down) MSL_FUNCTION(simd_shuffle_rotate_up)
MSL_FUNCTION(simd_shuffle_up) MSL_FUNCTION(simd_xor) MSL_FUNCTION(quad_all) MSL_FUNCTION(quad_any)
MSL_FUNCTION(quad_broadcast) MSL_FUNCTION(quad_max) MSL_FUNCTION(quad_min) MSL_FUNCTION(quad_shuffle)
MSL_FUNCTION(quad_sum) MSL_FUNCTION(atomic_compare_exchange_weak_explicit)
MSL_FUNCTION(atomic_exchange_explicit) MSL_FUNCTION(atomic_fetch_and_explicit)
MSL_FUNCTION(atomic_fetch_max_explicit) MSL_FUNCTION(atomic_fetch_min_explicit)
MSL_FUNCTION(atomic_fetch_or_explicit) MSL_FUNCTION(atomic_fetch_sub_explicit)
MSL_FUNCTION(atomic_fetch_xor_explicit) MSL_FUNCTION(atomic_thread_fence) MSL_FUNCTION(get_num_samples)
MSL_FUNCTION(dfdx) MSL_FUNCTION(dfdy) MSL_FUNCTION(fwidth) MSL_FUNCTION(discard_fragment)
MSL_FUNCTION(simdgroup_async_copy) MSL_FUNCTION(make_filled_simdgroup_matrix)
#undef MSL_FUNCTION
}
