// Words that every page has.
export const COMMON = {
  en: {
    name: "EN", model: "Model", language: "EN: 切换到中文", theme: "Light or dark", settings: "Settings", close: "Close", send: "Send",
    stop: "Stop", copy: "Copy", copied: "Copied", notCopied: "This browser does not allow copying: select the text instead.", edit: "Edit", unreachable: "The server cannot be reached.",
  },
  zh: {
    name: "中", model: "模型", language: "中: Switch to English", theme: "浅色或深色", settings: "设置", close: "关闭", send: "发送",
    stop: "停止", copy: "复制", copied: "已复制", notCopied: "浏览器不允许复制，请手动选择文本。", edit: "编辑", unreachable: "无法连接服务器。",
  },
};
