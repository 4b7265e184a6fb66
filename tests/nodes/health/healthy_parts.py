"""Define parts of a healthy node's answers: nvidia-smi's XML, systemd, a PCIe link, and a mount.

healthy.py builds the node's answers from these parts, and the tests of health checks replace a text in
them. The values are those of a node with H200 GPUs (SXM), as real programs print them. The sections have only
the elements that Rackproof reads.
"""

SECTIONS = (
    "<gpu_recovery_action>None</gpu_recovery_action>"
    "<pci><pci_gpu_link_info>"
    "<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>"
    "<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>"
    "</pci_gpu_link_info><replay_counter>0</replay_counter></pci>"
    "<clocks_event_reasons>"
    "<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>"
    "<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>"
    "<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>"
    "</clocks_event_reasons>"
    "<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>"
    "<ecc_errors><volatile><sram_uncorrectable_parity>0</sram_uncorrectable_parity>"
    "<dram_uncorrectable>0</dram_uncorrectable></volatile>"
    "<aggregate><sram_correctable>0</sram_correctable><dram_correctable>0</dram_correctable>"
    "<sram_threshold_exceeded>No</sram_threshold_exceeded></aggregate>"
    "<channel_repair_pending>No</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending></ecc_errors>"
    "<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>"
    "<fb_memory_usage><total>143771 MiB</total><used>0 MiB</used></fb_memory_usage>"
    "<bar1_memory_usage><total>262144 MiB</total></bar1_memory_usage>"
    "<compute_mode>Default</compute_mode><persistence_mode>Enabled</persistence_mode>"
    "<max_clocks><mem_clock>3201 MHz</mem_clock></max_clocks>"
    "<applications_clocks><graphics_clock>1980 MHz</graphics_clock>"
    "<mem_clock>3201 MHz</mem_clock></applications_clocks>"
    "<remapped_rows><remapped_row_pending>No</remapped_row_pending>"
    "<remapped_row_failure>No</remapped_row_failure></remapped_rows>"
    "<gpu_power_readings><current_power_limit>700.00 W</current_power_limit>"
    "<default_power_limit>700.00 W</default_power_limit></gpu_power_readings>"
)
"""The sections of a healthy GPU in the output of ``nvidia-smi -q -x``. healthy.py adds name, UUID, minor
number, serial number and temperatures. A test replaces a text in the sections."""

SYSTEMD = {
    name: {"status": "ok", "rc": 0, "stdout": text, "stderr": "", "seconds": 0.1}
    for name, text in (("failed_units", ""), ("units", ""), ("clock", "NTPSynchronized=yes\n"))
}
"""The answers of systemd on a node without findings, in the form of the module ``rackproof_facts``: no failed
unit, no output about required units, and a synchronized clock."""
CARD_LINKS = {
    "0000:03:00.0": {
        f"{which}_link_{name}": value
        for which in ("current", "max")
        for name, value in (("speed", "32.0 GT/s PCIe"), ("width", "16"))
    }
}
"""The files of a network card's PCIe link below /sys, by the card's address and the file's name. The link has
its full speed (PCIe 5.0) and width (16 lanes)."""
ROOT_MOUNT = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
"""A line of /proc/self/mountinfo, in which the root file system is mounted with ``rw``."""
